"""A stand-in for a virtual environment with vLLM, and a way to run a copy of the smoke suite against it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.model.report import Outcome, Report
from seatrial.model.values import parse_json

ROOT = Path(__file__).parents[1]
FAKE = ROOT / "tests" / "integration" / "smoke_fake_vllm.py"
MORE = FAKE.with_name("smoke_fake_extended.py")


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a virtual environment with vLLM, with the stand-in for its command."""
    root = tmp_path_factory.mktemp("venv")
    (root / "bin").mkdir()
    program = root / "bin" / "vllm"
    program.write_text(f"#!{sys.executable}\n" + FAKE.read_text().split("\n", 1)[1])
    program.chmod(0o755)
    (root / "bin" / MORE.name).write_text(MORE.read_text())
    info = root / "lib" / "python3.11" / "site-packages" / "vllm-0.28.0+cpu.st1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0+cpu.st1\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\n")
    return root


Runner = Callable[..., tuple[Report, str]]


@pytest.fixture
def trial(suite: Path, venv: Path, tmp_path: Path) -> Runner:
    """Run the suite with a fault and return its report and its screen."""

    def run(fault: str, *more: str) -> tuple[Report, str]:
        path = tmp_path / "report.json"
        argv = command(suite, venv, fault, "--report", str(path), *more)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
        assert path.exists(), done.stdout + done.stderr
        report = parse_json(Report, path.read_bytes(), "report")
        assert (done.returncode == 0) == (
            not {case.outcome for case in report.bad} & {Outcome.FAILED, Outcome.ERROR}
        ), done.stdout
        return report, done.stdout

    return run


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the suite alone, with short limits, as somebody who has nothing else would hold it."""
    root = tmp_path_factory.mktemp("alone") / "smoke_tests"
    subprocess.run(["cp", "-r", str(ROOT / "smoke_tests"), str(root)], check=True)
    profiles = root / "profiles.toml"
    text = profiles.read_text()
    for name, value in {"ready": 12, "request": 4, "case": 30, "end": 3, "stacks": 20}.items():
        old = next(line for line in text.splitlines() if line.startswith(f"{name} = "))
        text = text.replace(old, f"{name} = {value}", 1)
    profiles.write_text(text)
    return root


def command(suite: Path, venv: Path, fault: str, *more: str) -> list[str]:
    golden = suite / "models" / "golden"
    argv = [sys.executable, "-m", "pytest", str(suite), "--venv", str(venv), "--platform", "cpu", "-q"]
    return [*argv, "--server-env", f"FAULT={fault}", "--server-env", f"GOLDEN={golden}", *more]
