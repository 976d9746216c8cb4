"""A server under trial: start it, watch it, look into it, end it. Image, venv and URL are the three kinds."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import httpx

from smoke_tests import logs

POLL = 0.2
"""Seconds between two looks at a server that is starting or ending."""


class TrialError(AssertionError):
    """The server did not do what a case wants; the text is the case's reason."""


class LimitError(TrialError):
    """A wait was longer than its limit."""


class SetupError(RuntimeError):
    """The trial itself could not be set up."""


class Server(ABC):
    """One server; `url` is known once it has been started."""

    ours = True
    """Whether this run started it, and so may read its log and end it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.started = 0.0
        self.ready_after: float | None = None

    @abstractmethod
    def start(self) -> None:
        """Start the process or container and return at once."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """Return the exit code once the server has ended, None while it runs."""

    @abstractmethod
    def log(self) -> str:
        """Return everything that the server has printed."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Return the process ids (of this machine) of all its processes."""

    @abstractmethod
    def ask_to_end(self) -> None:
        """Send SIGTERM to its first process."""

    @abstractmethod
    def close(self) -> None:
        """Remove all that was made for it; may be called again, and after a failed start."""

    def wait_ready(self, limit: float) -> float:
        """Wait until /health answers 200 and return the seconds since the start.

        Raises:
            TrialError: the server ended before.
            LimitError: it was not ready within `limit` seconds.
        """
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == httpx.codes.OK:
                    self.ready_after = time.monotonic() - self.started
                    return self.ready_after
            if (code := self.exit_code()) is not None:
                raise TrialError(f"the server ended with exit code {code} before it was ready")
            if time.monotonic() - self.started > limit:
                raise LimitError(f"the server was not ready within {limit:.0f} s")
            time.sleep(POLL)

    def wait_end(self, limit: float) -> int:
        """Wait until the server has ended and return its exit code.

        Raises:
            LimitError: it still ran after `limit` seconds.
        """
        until = time.monotonic() + limit
        while (code := self.exit_code()) is None:
            if time.monotonic() > until:
                raise LimitError(f"the server still ran {limit:.0f} s after SIGTERM")
            time.sleep(POLL)
        return code

    def why(self) -> str:
        """Return the line of the log that says why the server died, or an empty text."""
        return logs.telling_line(self.log())

    def stacks(self, limit: float) -> str:
        """Return a stack of every Python process of the server, by py-spy."""
        tool = find_py_spy()
        if tool is None:
            return "py-spy is not installed: python -m pip install py-spy"
        parts = []
        for pid in self.pids():
            parts.append(f"== process {pid}: {command_of(pid)}\n{dump(tool, pid, limit)}")
        return "\n".join(parts) or "no process was left"


def find_py_spy() -> str | None:
    """Return the path of py-spy: beside this interpreter, or on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def dump(tool: str, pid: int, limit: float) -> str:
    """Return py-spy's stacks of one process, or why there are none."""
    try:
        done = subprocess.run(
            [tool, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"py-spy gave no stack within {limit:.0f} s"
    return done.stdout.strip() if done.returncode == 0 else f"no stack: {done.stderr.strip()[-300:]}"


def command_of(pid: int) -> str:
    """Return the command line of a process, shortened; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200].strip()
    except OSError:
        return ""


def alive(pids: Sequence[int]) -> list[int]:
    """Return those processes that still run (zombies do not)."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            if state not in ("Z", "X"):
                found.append(pid)
    return found


def kill(pids: Sequence[int], signal: int) -> None:
    """Send a signal to processes; those that are gone are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal)


class UrlServer(Server):
    """A server that somebody else runs: nothing is started, read or ended."""

    ours = False

    def __init__(self, url: str) -> None:
        super().__init__("url")
        self.url = url.rstrip("/")

    def start(self) -> None:
        """Note the time."""
        self.started = time.monotonic()

    def exit_code(self) -> int | None:
        """Return None: it is not ours to know."""
        return None

    def log(self) -> str:
        """Return an empty text: its log is elsewhere."""
        return ""

    def pids(self) -> list[int]:
        """Return no process."""
        return []

    def ask_to_end(self) -> None:
        """Refuse."""
        raise SetupError("a server given by --url is not ours to end")

    def close(self) -> None:
        """Leave it as it is."""
