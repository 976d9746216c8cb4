"""A server under trial: start it, watch it, look into it, end it. Image, venv and URL are the three kinds."""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import httpx

from smoke_tests import logs
from smoke_tests.evidence import command_of, process_text

POLL = 0.2
"""Seconds between two looks at a server that is starting or ending."""


class TrialError(AssertionError):
    """The server did not do what a case wants; the text is the case's reason."""


class LimitError(TrialError):
    """A wait was longer than its limit."""

    def __init__(self, text: str, phase: str = "case") -> None:
        super().__init__(text)
        self.phase = phase
        """The limit that was passed, as profiles.toml names it."""


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
                raise LimitError(f"the server was not ready within {limit:.0f} s", "ready")
            time.sleep(POLL)

    def wait_end(self, limit: float) -> int:
        """Wait until the server has ended and return its exit code.

        Raises:
            LimitError: it still ran after `limit` seconds.
        """
        until = time.monotonic() + limit
        while (code := self.exit_code()) is None:
            if time.monotonic() > until:
                raise LimitError(f"the server still ran {limit:.0f} s after SIGTERM", "end")
            time.sleep(POLL)
        return code

    def why(self) -> str:
        """Return the line of the log that says why the server died, or an empty text."""
        return logs.telling_line(self.log())

    def oom_killed(self) -> bool | None:
        """Tell whether the kernel killed a process of it for memory; None where nobody can say."""
        return None

    def stacks(self, limit: float) -> str:
        """Return what can be known of every process of the server: what it waits for, and its stacks."""
        return "\n\n".join(process_text(pid, limit) for pid in self.pids()) or "no process was left"

    def census(self) -> dict[int, str]:
        """Return the command of each process of the server."""
        return {pid: command for pid in self.pids() if (command := command_of(pid))}


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
