"""The smoke suite as anyone runs it, against a server that goes wrong in chosen ways: every check is seen red."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from seatrial.model.report import Outcome, Report
from seatrial.model.values import parse_json
from seatrial.stages.smoke import expected_cases
from tests.smokelab import Runner, command

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from smoke_tests.venv_server import free_port  # noqa: E402


def test_all_is_well(trial: Runner, suite: Path, tmp_path: Path) -> None:
    report, _ = trial("", "--junitxml", str(tmp_path / "junit.xml"))
    assert [case.name for case in report.cases] == list(expected_cases(suite, "basic", "0.28.0", "cpu").cases)
    declared = expected_cases(suite, "basic", "0.28.0", "cpu").not_supported
    for case in report.cases:
        assert case.outcome is (Outcome.NOT_SUPPORTED if case.name in declared else Outcome.PASSED), case
    assert (report.base, report.platform, report.subject_kind) == ("0.28.0", "cpu", "venv")
    assert report.device.kind == "cpu"
    assert "qwen3/golden" in (tmp_path / "junit.xml").read_text()
    measured = {case.name: case.measured for case in report.cases}
    assert measured["qwen3/batch-65"]["steps"] == 65 * 12
    assert measured["qwen3-next-float16/serves-or-refuses"]["ended"] == "refused"


@pytest.mark.parametrize(
    ("fault", "case", "reason", "log_line"),
    [
        ("dies", "first-request", "was not answered", "RuntimeError: initial_state dtype mismatch"),
        ("nan", "first-request", "printable tokens", ""),
        ("nan", "golden", "log probability of token", ""),
        ("wrong-logits", "golden", "golden -", ""),
        ("wrong-logits", "batch-8", "golden -", ""),
        ("wrong-logits", "long-prompt", "golden -", ""),
        ("nan", "logprobs", "log probabilities are", ""),
        ("short-stream", "streaming", "in one piece", ""),
        ("no-grammar", "structured-json", "is not JSON", ""),
        ("no-grammar", "tools", "is not JSON", ""),
        ("unsteady", "repeat", "the first", ""),
        ("stale", "models", "/version says 0.9.9, the base is 0.28.0", ""),
        ("traceback", "log", "1 tracebacks", "ValueError: swallowed"),
        ("bad-exit", "end", "exit code 3", ""),
        ("leaves-a-child", "end", "1 of 2 processes still run", ""),
    ],
)
def test_a_fault_is_seen_by_its_case(trial: Runner, fault: str, case: str, reason: str, log_line: str) -> None:
    report, screen = trial(fault)
    found = {entry.name: entry for entry in report.cases}[f"qwen3/{case}"]
    assert found.outcome is Outcome.FAILED, found
    assert reason in found.reason
    assert log_line in found.log_line
    assert f"qwen3/{case}: " in screen
    assert {evidence.server for evidence in report.evidence} >= {"qwen3"}


def test_after_a_death_the_rest_says_not_run(trial: Runner) -> None:
    report, _ = trial("dies")
    outcomes = {case.name: case for case in report.cases}
    assert outcomes["qwen3/ready"].outcome is Outcome.PASSED
    assert outcomes["qwen3/chat"].outcome is Outcome.NOT_RUN
    assert "ended with exit code 9" in outcomes["qwen3/chat"].reason
    assert outcomes["qwen3/end"].outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("fault", "test", "reason"),
    [
        ("never-ready", "ready", "not ready within 12 s"),
        ("hang", "first_request", "not answered within 4 s"),
        ("ignores-sigterm", "end", "still ran 3 s after SIGTERM"),
    ],
)
def test_a_limit_leaves_stacks(trial: Runner, fault: str, test: str, reason: str) -> None:
    report, _ = trial(fault, "-k", f"(test_{test} or test_ready) and not next")
    found = {entry.name: entry for entry in report.cases}[f"qwen3/{test.replace('_', '-')}"]
    assert found.outcome is Outcome.FAILED
    assert reason in found.reason
    evidence = next(entry for entry in report.evidence if entry.server == "qwen3")
    assert "serve_forever" in evidence.stacks
    assert "starting" in evidence.log_tail


@pytest.mark.parametrize("fault", ["gruff", "takes-anything"])
def test_a_data_type_is_served_or_refused_with_a_way_out(trial: Runner, fault: str) -> None:
    report, _ = trial(fault, "-k", "serves-or-refuses")
    found = {entry.name: entry for entry in report.cases}["qwen3-next-float16/serves-or-refuses"]
    if fault == "takes-anything":
        assert (found.outcome, found.measured["ended"]) == (Outcome.PASSED, "served")
    else:
        assert found.outcome is Outcome.FAILED
        assert "did not say which data type works" in found.reason
    assert {case.outcome for case in report.cases if case.name != found.name} == {Outcome.NOT_RUN}


def test_what_the_base_cannot_do_is_declared_and_starts_nothing(trial: Runner) -> None:
    report, _ = trial("dies", "--profile", "gdn", "-k", "gdn-fp8")
    declared = [case for case in report.cases if case.name.startswith("gdn-fp8")]
    assert {case.outcome for case in declared} == {Outcome.NOT_SUPPORTED}
    assert all("no operator that quantises" in case.reason for case in declared)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--platform", "tpu"], "there is no platform 'tpu'"),
        (["--profile", "deep"], "there is no profile 'deep'"),
        (["--url", "http://127.0.0.1:9"], "one of --image, --url and --venv"),
        (["--platform", "xpu"], "no xpu device"),
        (["--server-env", "X"], "is not NAME=VALUE"),
    ],
)
def test_wrong_words_are_one_line(suite: Path, venv: Path, words: list[str], says: str) -> None:
    if "xpu" in words and Path("/dev/dri").exists():
        words = ["--platform", "rocm-gfx942"]
        says = "no rocm device"
    done = subprocess.run(command(suite, venv, "", *words), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert says in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def processes(mark: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(mark).encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on_after_a_stop(suite: Path, venv: Path, tmp_path: Path, number: int) -> None:
    path = tmp_path / "report.json"
    argv = command(suite, venv, "hang", "--report", str(path))
    started = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    program = venv / "bin" / "vllm"
    wait_until(lambda: bool(processes(program)))
    started.send_signal(number)
    started.wait(30)
    wait_until(lambda: not processes(program))
    if number != signal.SIGKILL:
        report = parse_json(Report, path.read_bytes(), "report")
        assert Outcome.NOT_RUN in {case.outcome for case in report.cases}
        assert report.bad


def wait_until(true: Any, limit: float = 30.0) -> None:
    until = time.monotonic() + limit
    while not true():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_url_has_no_log_and_no_end(suite: Path, venv: Path, tmp_path: Path) -> None:
    port = free_port()
    argv = [str(venv / "bin" / "vllm"), "serve", "x", "--port", str(port), "--served-model-name"]
    environment = {**os.environ, "GOLDEN": str(suite / "models" / "golden")}
    server = subprocess.Popen([*argv, "seatrial-qwen3", "--dtype", "bfloat16"], env=environment)
    path = tmp_path / "report.json"
    try:
        words = ["--url", f"http://127.0.0.1:{port}", "--platform", "cpu", "--base", "0.28.0", "--report", str(path)]
        subprocess.run([sys.executable, "-m", "pytest", str(suite), *words], timeout=120, check=True)
    finally:
        server.kill()
        server.wait()
    data = json.loads(path.read_text())
    outcomes = {case["name"]: case["outcome"] for case in data["cases"]}
    assert (outcomes["qwen3/log"], outcomes["qwen3/end"], outcomes["qwen3/golden"]) == ("not-run", "not-run", "passed")
    assert data["subject_kind"] == "url"
