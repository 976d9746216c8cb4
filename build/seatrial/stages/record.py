"""The record of a named image: made from what the stages returned, written once, checked whenever it is read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.model.base import BaseLock
from seatrial.model.errors import IntegrityError, LockError
from seatrial.model.fixes import AppliedFix
from seatrial.model.names import Line
from seatrial.model.record import Record, RecordedBase, RecordedImage, RecordedReport, RecordedWheel, SkippedFix
from seatrial.model.report import Outcome, Report
from seatrial.model.values import parse_json
from seatrial.ports.files import write_atomic

SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A report with the digest of the file it was read from."""

    path: Path
    sha256: str
    report: Report


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What went into an image, from the stages that put it in."""

    lock: BaseLock
    fixes: tuple[AppliedFix, ...]
    skipped: tuple[SkippedFix, ...]
    series_sha256: str
    requirements_sha256: str
    inputs_sha256: str
    wheel: RecordedWheel
    image: RecordedImage
    source_revision: str


def read_report(path: Path) -> ReportFile:
    """Read a report file once, so that the digest is over the bytes that were parsed.

    Raises:
        LockError: it is no report.
        IntegrityError: it is gone.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise IntegrityError(
            f"the report {path.name} cannot be read", why=error.strerror or "", do="run the same again"
        ) from None
    return ReportFile(path, hashlib.sha256(data).hexdigest(), parse_json(Report, data, path.name))


def make_record(
    ingredients: Ingredients,
    line: Line,
    revision: int,
    *,
    reports: Sequence[ReportFile],
    names: Sequence[str],
    pushed: Sequence[str] = (),
    fallbacks: Sequence[str] = (),
    created: str,
) -> Record:
    """Return the record of one named image.

    Args:
        names: what the naming stage returned for the engine.
        pushed: the reference by digest and the names in a registry.
        fallbacks: the console's list of second choices.
        created: UTC, ISO 8601.
    """
    lock = ingredients.lock
    return Record(
        schema="seatrial.record/1",
        platform=line.platform,
        revision=revision,
        base=RecordedBase(
            version=lock.version,
            source=lock.source,
            artifacts=lock.artifacts,
            comparisons=lock.comparisons,
            lock_sha256=lock.content_sha256,
        ),
        fixes=ingredients.fixes,
        skipped=ingredients.skipped,
        series_sha256=ingredients.series_sha256,
        requirements_sha256=ingredients.requirements_sha256,
        inputs_sha256=ingredients.inputs_sha256,
        wheel=ingredients.wheel,
        image=ingredients.image,
        reports=tuple(recorded(file) for file in reports),
        names=tuple(names),
        pushed=tuple(pushed),
        fallbacks=tuple(fallbacks),
        source_revision=ingredients.source_revision,
        created=created,
    )


def recorded(file: ReportFile) -> RecordedReport:
    """Return what the record keeps of a report."""
    report = file.report
    counts = Counter(case.outcome for case in report.cases)
    return RecordedReport(
        kind=report.kind,
        profile=report.profile,
        subject=report.subject,
        sha256=file.sha256,
        device=report.device.kind,
        passed=counts[Outcome.PASSED],
        not_supported=tuple(case.name for case in report.cases if case.outcome is Outcome.NOT_SUPPORTED),
    )


def write_record(record: Record, path: Path) -> None:
    """Write a record as indented JSON with sorted keys, whole or not at all."""
    write_atomic(path, _pretty(record.model_dump(mode="json", by_alias=True)))


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        LockError: there is none, or it is malformed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LockError(
            f"there is no record {path.name}", why=error.strerror or "", do="build the image; the gate leaves a record"
        ) from None
    return parse_json(Record, data, path.name)


def verify_record(record: Record, reports: Sequence[ReportFile]) -> None:
    """Check that a record agrees with itself and with the report files beside it.

    Raises:
        IntegrityError: names everything that does not agree.
    """
    wrong = [*_wrong_names(record), *_wrong_reports(record, reports)]
    if wrong:
        raise IntegrityError(
            f"the record of {record.base.version}-{record.platform}-r{record.revision} does not agree with itself",
            why="; ".join(wrong),
            do="do not use it; build the image again",
        )


def _wrong_names(record: Record) -> list[str]:
    line = Line(base=record.base.version, platform=record.platform)
    release, moving = line.release_tag(record.revision), line.moving_tag
    wrong = []
    tags = [name.rpartition(":")[2] for name in record.names]
    if release not in tags:
        wrong.append(f"the name {release} is missing")
    by_digest = [entry for entry in record.pushed if "@" in entry]
    tags += [entry.rpartition(":")[2] for entry in record.pushed if "@" not in entry]
    wrong += [f"{tag} is no name of this image" for tag in tags if tag not in (release, moving)]
    wrong += [f"{entry} is another image" for entry in by_digest if entry.partition("@")[2] != record.image.digest]
    return wrong


def _wrong_reports(record: Record, reports: Sequence[ReportFile]) -> list[str]:
    wrong = [
        f"the {kind} report is missing"
        for kind in ("inspect", "smoke")
        if kind not in {entry.kind for entry in record.reports}
    ]
    for entry in record.reports:
        label = f"{entry.kind} {entry.profile}"
        if entry.subject != record.image.digest:
            wrong.append(f"{label} is about {entry.subject}, the image is {record.image.digest}")
        found = [file for file in reports if file.sha256 == entry.sha256]
        if not found:
            wrong.append(f"no file is the report {label} (sha256 {entry.sha256[:12]})")
        elif recorded(found[0]) != entry:
            wrong.append(f"{label} says something else than its file")
        elif (found[0].report.base, found[0].report.platform) != (record.base.version, record.platform):
            wrong.append(f"{label} is about another base or platform")
        elif found[0].report.bad:
            wrong.append(f"{label} has a case that did not pass: {found[0].report.bad[0].name}")
    return wrong


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record, made from the model."""
    schema = Record.model_json_schema(by_alias=True, mode="serialization")
    for part in (schema, *schema["$defs"].values()):
        if "properties" in part:
            part["required"] = list(part["properties"])  # a record is written whole: defaults stand in it too
    return {"$schema": SCHEMA_URL, **schema}


def schema_text() -> bytes:
    """Return `docs/record.schema.json` as it has to be."""
    return _pretty(record_schema())


def _pretty(data: Any) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
