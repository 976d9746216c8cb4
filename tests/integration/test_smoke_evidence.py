"""What a report keeps of a server that hangs or dies: seen with a server that does so in chosen ways."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from seatrial.model.report import Evidence, Outcome, Report
from seatrial.stages.smoke_page import report_page
from tests.smokelab import Runner, command


def kept(report: Report, server: str = "qwen3") -> Evidence:
    return next(entry for entry in report.evidence if entry.server == server)


def outcome(report: Report, case: str) -> tuple[Outcome, str]:
    found = next(entry for entry in report.cases if entry.name == f"qwen3/{case}")
    return found.outcome, found.reason


def test_a_hang_at_the_start(trial: Runner) -> None:
    report, _ = trial("never-ready", "-k", "(test_ready or test_chat) and not next")
    evidence = kept(report)
    assert evidence.breaches == ("ready: the server was not ready within 12 s (limit 'ready')",)
    assert "serve_forever" in evidence.stacks
    assert "State S (sleeping)" in evidence.stacks
    assert "threads wait in: " in evidence.stacks
    assert "kernel stack: " in evidence.stacks
    assert evidence.device == "no device: the platform runs on the CPU"
    assert "starting" in evidence.log_tail
    assert (evidence.requests, evidence.ending) == ((), None)
    assert outcome(report, "chat")[0] is Outcome.NOT_RUN


def test_a_hang_in_a_request_is_met_once(trial: Runner) -> None:
    report, _ = trial("hang", "-k", "(test_ready or test_chat or test_completion or test_end) and not next")
    evidence = kept(report)
    (request,) = evidence.requests
    assert (request.method, request.path) == ("POST", "/v1/completions")
    assert '"max_tokens"' in request.body
    assert request.seconds >= 4
    assert "LimitError" in request.ended
    assert "do_POST" in evidence.stacks
    assert evidence.breaches[0].startswith("completion: /v1/completions was not answered within 4 s (limit 'request')")
    assert outcome(report, "chat") == (
        Outcome.NOT_RUN,
        "the server hangs since completion: not even one token came within 4 s",
    )
    assert outcome(report, "end")[0] is not Outcome.NOT_RUN


def test_a_stream_without_an_end(trial: Runner) -> None:
    report, _ = trial("endless-stream", "-k", "(test_ready or test_streaming or test_chat) and not next")
    assert outcome(report, "streaming")[0] is Outcome.FAILED
    evidence = kept(report)
    assert "(streamed) did not end within 4 s (limit 'request')" in evidence.breaches[0]
    assert "stream_for_ever" in evidence.stacks
    assert '"stream": true' in evidence.requests[0].body
    assert outcome(report, "chat")[0] is Outcome.PASSED, "it answers everything else"


def test_a_crash_in_a_request(trial: Runner) -> None:
    report, _ = trial("crashes", "-k", "(test_ready or test_chat) and not next")
    evidence = kept(report)
    assert evidence.ending is not None
    assert (evidence.ending.exit_code, evidence.ending.signal) == (-11, "SIGSEGV")
    assert evidence.ending.oom_killed is False
    assert evidence.ending.core_pattern == Path("/proc/sys/kernel/core_pattern").read_text().strip()
    assert "about to read what is not there" in evidence.log_tail
    (request,) = evidence.requests
    assert request.path == "/v1/chat/completions"
    assert "TrialError" in request.ended
    assert [entry.split()[-1] for entry in evidence.gone] == ["hermes"] or "vllm" in evidence.gone[0]
    assert evidence.stacks == ""
    assert "SIGSEGV" in report_page(report)


def test_a_worker_that_is_killed(trial: Runner) -> None:
    report, _ = trial("loses-a-worker", "-k", "(test_ready or test_chat) and not next")
    assert outcome(report, "chat")[0] is Outcome.FAILED
    evidence = kept(report)
    assert len(evidence.gone) == 1
    assert evidence.gone[0].endswith("worker")
    assert evidence.ending is None
    assert next(case.log_line for case in report.cases if case.name == "qwen3/chat").startswith("EngineDeadError")


def test_a_server_that_does_not_end(trial: Runner) -> None:
    report, _ = trial("ignores-sigterm", "-k", "(test_ready or test_chat or test_end) and not next")
    evidence = kept(report)
    assert evidence.breaches == ("end: the server still ran 3 s after SIGTERM (limit 'end')",)
    assert "SigIgn 0000000000004" in evidence.stacks or "SigIgn" in evidence.stacks
    assert outcome(report, "chat")[0] is Outcome.PASSED


def test_a_good_run_keeps_facts_and_no_evidence(trial: Runner) -> None:
    report, _ = trial("", "-k", "(test_ready or test_chat) and not next")
    assert report.evidence == ()
    assert {"kernel", "memory", "python", "as named"} <= set(report.facts)
    assert report.facts["set in every server"] == "FAULT, GOLDEN", "values may be secrets"


def test_junit_is_valid_and_names_what_it_is_about(suite: Path, venv: Path, tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    words = ["--report", str(tmp_path / "report.json"), "--junitxml", str(path), "-k", "not next"]
    subprocess.run(command(suite, venv, "traceback", *words), capture_output=True, timeout=300, check=False)
    report = Report.model_validate_json((tmp_path / "report.json").read_text())
    (inner,) = ET.parse(path).getroot()
    about = {entry.attrib["name"]: entry.attrib["value"] for entry in inner.iterfind("properties/property")}
    assert about["subject"] == report.subject
    assert (about["profile"], about["platform"], about["base"]) == ("basic", "cpu", "0.28.0")
    cases = inner.findall("testcase")
    assert int(inner.attrib["tests"]) == len(cases)
    counts = {name: sum(case.find(name) is not None for case in cases) for name in ("failure", "error", "skipped")}
    assert (int(inner.attrib["failures"]), int(inner.attrib["errors"]), int(inner.attrib["skipped"])) == tuple(
        counts.values()
    )
    assert counts["failure"] == sum(case.outcome is Outcome.FAILED for case in report.cases) == 1
    assert all(case.attrib["name"] and case.attrib["classname"] and float(case.attrib["time"]) >= 0 for case in cases)
    assert {child.tag for case in cases for child in case} <= {
        "failure",
        "error",
        "skipped",
        "system-out",
        "system-err",
    }


def test_stacks_of_a_stopped_process_are_read_without_stopping(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from smoke_tests.evidence import process_text, status_of

    code = "import os, signal\ndef asleep():\n    os.kill(os.getpid(), signal.SIGSTOP)\nasleep()\n"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not status_of(process.pid).get("State", "").startswith("T"):
            assert process.poll() is None
        text = process_text(process.pid, 20)
    finally:
        process.kill()
        process.wait()
    assert "State T (stopped)" in text
    assert "asleep (<string>:3)" in text
    assert process_text(process.pid, 20).endswith("it has ended")


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu"])
def test_a_device_that_has_no_tool_is_said_to_have_none(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from smoke_tests.evidence import device_text

    monkeypatch.setenv("PATH", str(tmp_path))
    assert "is not installed" in device_text(kind)
    for name in ("nvidia-smi", "amd-smi", "rocm-smi", "xpu-smi"):
        tool = tmp_path / name
        tool.write_text("#!/bin/sh\necho one device, 99 % busy\n")
        tool.chmod(0o755)
    assert "one device, 99 % busy" in device_text(kind)
