"""A command that is bound to this process ends when this process is killed; one that is not runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seatrial.model.errors import CommandError
from seatrial.ports.process import run

ROOT = Path(__file__).parents[2]
SCRIPT = "import sys; from seatrial.ports.process import run; run(['sleep', sys.argv[1]], timeout=600, bound={})"


def sleepers(seconds: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def wait_for(count: int, seconds: str, limit: float = 30.0) -> list[int]:
    until = time.monotonic() + limit
    while len(found := sleepers(seconds)) != count and time.monotonic() < until:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("bound", [True, False])
def test_a_killed_process_takes_its_bound_command_along(bound: bool) -> None:
    seconds = f"{600 + bound}.{os.getpid()}"
    argv = [sys.executable, "-c", SCRIPT.format(bound), seconds]
    started = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT / "build")})
    try:
        assert len(wait_for(1, seconds)) == 1
        started.kill()
        started.wait(30)
        left = wait_for(0, seconds, limit=30.0 if bound else 1.0)
        assert len(left) == (0 if bound else 1)
    finally:
        for pid in sleepers(seconds):
            os.kill(pid, signal.SIGKILL)


def test_a_bound_command_is_the_command_itself() -> None:
    done = run(["sh", "-c", "echo $$; exec kill -PIPE $$"], timeout=60, check=False, bound=True)
    assert done.argv[0] == "sh"
    assert done.status == -signal.SIGPIPE
    with pytest.raises(CommandError, match="no-such-program is not installed"):
        run(["no-such-program"], timeout=60, bound=True)
