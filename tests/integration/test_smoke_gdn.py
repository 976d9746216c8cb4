"""The profile `gdn` against a server that goes wrong in chosen ways: each case is seen red for its fault, and alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from seatrial.model.report import Outcome
from seatrial.stages.smoke import expected_cases
from tests.smokelab import Runner, command

GROUP = "gdn-bfloat16"
DECODE = {"decode-2", "decode-17", "decode-64", "decode-65"}


def test_all_is_well(trial: Runner, suite: Path) -> None:
    report, _ = trial("", "--profile", "gdn")
    wanted = expected_cases(suite, "gdn", "0.28.0", "cpu")
    assert [case.name for case in report.cases] == list(wanted.cases)
    for case in report.cases:
        declared = case.name in wanted.not_supported
        assert case.outcome is (Outcome.NOT_SUPPORTED if declared else Outcome.PASSED), case
    measured = {case.name: case.measured for case in report.cases}
    assert measured[f"{GROUP}/decode-65"]["steps_of_that_size"] == 11
    assert measured[f"{GROUP}/reused-slots"]["requests_before"] >= measured[f"{GROUP}/reused-slots"]["blocks"] == 200
    assert measured["gdn-float16/serves-or-refuses"]["ended"] == "refused"


def test_ready_alone_never_passes(trial: Runner) -> None:
    report, _ = trial("dies", "--profile", "gdn", "-k", "first-request")
    cases = {case.name: case for case in report.cases if case.name.startswith("gdn-first-request/")}
    assert cases["gdn-first-request/ready"].outcome is Outcome.PASSED
    first = cases["gdn-first-request/first-request"]
    assert first.outcome is Outcome.FAILED
    assert "initial_state dtype mismatch" in first.log_line
    assert cases["gdn-first-request/end"].outcome is Outcome.FAILED


def test_a_data_type_that_dies_late_is_refused_with_that_as_the_cause(trial: Runner) -> None:
    report, _ = trial("dies,takes-anything", "--profile", "gdn", "-k", "gdn-float16")
    found = {case.name: case for case in report.cases}["gdn-float16/serves-or-refuses"]
    assert found.outcome is Outcome.FAILED
    assert "was not answered" in found.reason
    assert "initial_state dtype mismatch" in found.log_line


def test_a_server_that_is_never_ready_is_asked_nothing(trial: Runner) -> None:
    report, _ = trial("never-ready,takes-anything", "--profile", "gdn", "--base", "0.15.1", "-k", "gdn-float16")
    cases = {case.name.partition("/")[2]: case for case in report.cases if case.name.startswith("gdn-float16/")}
    assert cases["serves-or-refuses"].outcome is Outcome.FAILED
    assert cases["decode-64"].outcome is Outcome.NOT_RUN
    assert "never ready" in cases["decode-64"].reason


def test_a_declaration_that_is_no_longer_true_is_seen(trial: Runner) -> None:
    report, _ = trial("takes-anything", "--profile", "gdn", "-k", "gdn-float16")
    found = {case.name: case for case in report.cases}["gdn-float16/serves-or-refuses"]
    assert found.outcome is Outcome.FAILED
    assert "promise them" in found.reason


@pytest.mark.parametrize(
    ("fault", "red"),
    [
        ("wrong-small", {"decode-2", "decode-17", "decode-64", "reused-slots"}),
        ("wrong-large", {"decode-65"}),
        ("swapped", DECODE | {"mixed"}),
        ("wrong-mixed", {"mixed"}),
        ("left-over", {"reused-slots"}),
        ("wrong-length-64", {"prefill-64"}),
        ("wrong-length-65", {"prefill-65", "reused-slots"}),
        ("wrong-length-300", {"prefill-300", "reused-slots"}),
        ("wrong-length-1", {"prefill-1", "reused-slots"}),
        ("wrong-length-513", {"chunks-1"}),
        ("wrong-length-576", {"chunks-64"}),
        ("wrong-length-577", {"chunks-65"}),
        ("wrong-length-1500", {"chunks-many"}),
    ],
)
def test_a_fault_of_one_branch_is_seen_by_its_cases_alone(trial: Runner, fault: str, red: set[str]) -> None:
    report, _ = trial(fault, "--profile", "gdn", "-k", GROUP)
    cases = [case for case in report.cases if case.name.startswith(f"{GROUP}/")]
    assert {case.name.partition("/")[2] for case in cases if case.outcome is Outcome.FAILED} == red
    assert all("log probability" in case.reason or "first choice" in case.reason for case in cases if case.reason)


def test_a_fault_of_a_token_alone_is_seen(trial: Runner) -> None:
    report, _ = trial("wrong-alone", "--profile", "gdn", "-k", GROUP)
    outcomes = {case.name.partition("/")[2]: case.outcome for case in report.cases if case.name.startswith(GROUP)}
    assert {outcomes[case] for case in ("decode-1", "prefill-1", "prefill-short")} == {Outcome.FAILED}
    assert {outcomes[case] for case in DECODE} == {Outcome.PASSED}


def test_another_composition_than_the_name_says_never_passes(trial: Runner) -> None:
    report, _ = trial("serial", "--profile", "gdn", "-k", GROUP)
    cases = {case.name.partition("/")[2]: case for case in report.cases if case.name.startswith(GROUP)}
    for name in DECODE | {"mixed"}:
        assert cases[name].outcome is Outcome.ERROR, cases[name]
        assert "composition was not reached" in cases[name].reason
    assert cases["decode-1"].outcome is Outcome.PASSED


def test_a_server_that_does_not_count_proves_nothing(trial: Runner) -> None:
    report, _ = trial("no-metrics", "--profile", "gdn", "-k", GROUP)
    cases = {case.name.partition("/")[2]: case for case in report.cases if case.name.startswith(GROUP)}
    assert cases["decode-64"].outcome is Outcome.FAILED
    assert "/metrics (HTTP 404) does not say: blocks, count" in cases["decode-64"].reason


@pytest.mark.parametrize(
    ("words", "says"), [(["--report", "/proc/nowhere/r.json"], "cannot be written"), (["--report", "/"], "directory")]
)
def test_a_report_that_cannot_be_written_is_said_first(suite: Path, venv: Path, words: list[str], says: str) -> None:
    argv = command(suite, venv, "", *words)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    assert len(lines) == 1
    assert says in lines[0]
    assert "Traceback" not in done.stderr + done.stdout
