"""The stage: what the suite reports comes through, and a run that could not be carried out is an error."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seatrial.model.errors import CommandError, SmokeError
from seatrial.model.report import Report
from seatrial.model.values import parse_json
from seatrial.ports.console import Console
from seatrial.ports.process import Completed
from seatrial.stages import smoke

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from smoke_tests.image_server import abandoned, owner_name, owner_of_this_process  # noqa: E402
from smoke_tests.results import Results, write_report  # noqa: E402

DIGEST = "sha256:" + "a" * 64
DEVICE = {"kind": "cpu", "name": "some processor x 2", "rehearsed": False}


def report_of(cases: Sequence[str], subject: str = DIGEST) -> tuple[Results, Any]:
    results = Results(cases)
    for case in cases:
        results.add(case, "passed", 0.1, measured={"worst": 0.01})
    return results, results.report(
        profile="basic", subject=subject, subject_kind="image", platform="cpu", base="0.28.0", device=DEVICE
    )


def test_what_the_suite_writes_is_a_report(tmp_path: Path) -> None:
    results = Results(["a/ready", "a/chat", "a/end"], tmp_path / "events.jsonl")
    results.add("a/ready", "passed", 31.5, measured={"ready_s": 31.2})
    results.add("a/chat", "failed", 1.0, reason="HTTP 500", log_line="RuntimeError: initial_state dtype mismatch")
    results.keep("a", "the end of the log", "a stack")
    results.keep("a", "the end of the log, later", "")
    data = results.report(
        profile="basic", subject=DIGEST, subject_kind="image", platform="cpu", base="0.28.0", device=DEVICE
    )
    write_report(tmp_path / "report.json", data)
    report = parse_json(Report, (tmp_path / "report.json").read_bytes(), "report")
    assert [case.outcome.value for case in report.cases] == ["passed", "failed", "not-run"]
    assert [case.name for case in report.bad] == ["a/chat", "a/end"]
    assert (report.evidence[0].log_tail, report.evidence[0].stacks) == ("the end of the log, later", "a stack")
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def fake_run(report: Any, status: int = 0, output: str = "", events: Sequence[dict[str, Any]] = ()) -> Any:
    def run(argv: Sequence[str], **_: Any) -> Completed:
        if report is not None:
            write_report(Path(argv[argv.index("--report") + 1]), report)
        path = Path(argv[argv.index("--events") + 1])
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return Completed(tuple(argv), status, output.encode(), b"")

    return run


def smoke_it(monkeypatch: pytest.MonkeyPatch, run: Any) -> tuple[Report, str]:
    monkeypatch.setattr(smoke, "run", run)
    out = io.StringIO()
    console = Console(out=out, ci=False)
    report = smoke.run_smoke(ROOT, DIGEST, platform="cpu", base="0.28.0", profile="basic", console=console)
    return report, out.getvalue()


def test_options_in_the_environment_do_not_reach_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--server-env VLLM_CPU_SGL_KERNEL=0")
    seen: list[Any] = []

    def run(argv: Sequence[str], *, env: Any = None, **more: Any) -> Completed:
        seen.append({**os.environ, **(env or {})})
        return made(argv, **more)

    made = fake_run(report_of(["qwen3/ready"])[1])
    smoke_it(monkeypatch, run)
    assert [(each["PYTEST_ADDOPTS"], each["PYTEST_PLUGINS"]) for each in seen] == [(None, None)]


def test_a_failed_case_is_returned_and_shown_with_the_log_line(monkeypatch: pytest.MonkeyPatch) -> None:
    results, _ = report_of(["qwen3/ready"])
    results.add("qwen3/chat", "failed", 2.0, reason="HTTP 500", log_line="RuntimeError: why")
    data = results.report(
        profile="basic", subject=DIGEST, subject_kind="image", platform="cpu", base="0.28.0", device=DEVICE
    )
    events = list(results.cases.values())
    report, text = smoke_it(monkeypatch, fake_run(data, status=1, events=events))
    assert [case.name for case in report.bad] == ["qwen3/chat"]
    assert "qwen3/chat" in text
    assert "log: RuntimeError: why" in text


@pytest.mark.parametrize(
    ("subject", "status", "wanted"),
    [
        ("sha256:" + "b" * 64, 0, "about something else"),
        (None, 4, "could not be carried out: the engine has no image"),
        (None, 0, "could not be carried out"),
        (DIGEST, 3, "could not be carried out"),
    ],
)
def test_a_run_that_was_not_carried_out_is_an_error(
    monkeypatch: pytest.MonkeyPatch, subject: str | None, status: int, wanted: str
) -> None:
    data = None if subject is None else report_of(["qwen3/ready"], subject)[1]
    with pytest.raises(SmokeError, match=wanted):
        smoke_it(monkeypatch, fake_run(data, status, "ERROR: the engine has no image sha256:a\n\n"))


def test_leftovers_are_swept_when_the_suite_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: Any) -> Completed:
        calls.append(argv)
        if "pytest" in argv:
            raise CommandError("pytest did not end within 9 s", output="the last line")
        return Completed(tuple(argv), 0, b"", b"")

    with pytest.raises(SmokeError, match="did not end") as caught:
        smoke_it(monkeypatch, run)
    assert caught.value.why == "the last line"
    assert calls[-1][-1] == "smoke_tests.leftovers"


def test_only_what_dead_processes_of_this_machine_left_is_abandoned() -> None:
    own = owner_of_this_process()
    assert own == owner_name(os.getpid())
    assert not abandoned(own)
    space, pid, _ = own.split(":")
    assert abandoned(f"{space}:{pid}:1")
    assert not abandoned(f"1:{pid}:1")
    assert not abandoned("")
    assert not abandoned("x:y")
