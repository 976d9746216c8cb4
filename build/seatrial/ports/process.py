"""The one door for external commands: argv in, quoted line out, time limit, output kept on failure."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.model.errors import CommandError

KEEP_LINES = 25
"""Lines of output that an error carries along."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished command; `stdout` is bytes because patches and archives are."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Return stdout as text, undecodable bytes replaced."""
        return self.stdout.decode(errors="replace")


def quoted(argv: Sequence[str]) -> str:
    """Return the command as a line that can be pasted into a shell."""
    return shlex.join(argv)


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    stdin: bytes | None = None,
    check: bool = True,
) -> Completed:
    """Run a command to its end, in its own process group, and return what it printed.

    Args:
        argv: program and arguments; never a shell line.
        timeout: seconds after which the whole group is killed.
        env: variables laid over this process's environment; None takes one away.
        check: raise when the exit status is not zero.

    Raises:
        CommandError: not found, timed out, or failed while `check` is set; carries the output's end.
    """
    laid: dict[str, str | None] = {**os.environ, **(env or {})}
    merged = {name: value for name, value in laid.items() if value is not None}
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=merged,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except FileNotFoundError:
        raise CommandError(
            f"{argv[0]} is not installed", why=f"needed for: {quoted(argv)}", do=f"install {argv[0]}"
        ) from None
    except OSError as error:
        raise CommandError(f"{argv[0]} could not be started", why=str(error)) from None
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        stdout, stderr = process.communicate()
        raise CommandError(
            f"{argv[0]} did not end within {timeout:.0f} s", why=quoted(argv), output=_tail(stdout, stderr)
        ) from None
    except BaseException:
        _kill_group(process)
        process.communicate()
        raise
    done = Completed(tuple(argv), process.returncode, stdout, stderr)
    if check and done.status != 0:
        raise CommandError(
            f"{argv[0]} ended with status {done.status}",
            why=quoted(argv),
            status=done.status,
            output=_tail(stdout, stderr),
        )
    return done


def run_through(argv: Sequence[str]) -> int:
    """Run a command on this terminal and return its exit status; Ctrl-C reaches it as it reaches this process.

    Raises:
        CommandError: it could not be started.
    """
    try:
        return subprocess.run(list(argv), check=False).returncode
    except OSError as error:
        raise CommandError(f"{argv[0]} could not be started", why=str(error)) from None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and everything it started; only a group that this module made."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)


def _tail(stdout: bytes, stderr: bytes) -> str:
    lines = (stdout + b"\n" + stderr).decode(errors="replace").splitlines()
    return "\n".join([line for line in lines if line.strip()][-KEEP_LINES:])
