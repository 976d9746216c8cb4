"""The one door for external commands: argv in, quoted line out, time limit, output kept on failure."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.model.errors import CommandError
from seatrial.ports import bound as bound_module

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
    bound: bool = False,
) -> Completed:
    """Run a command to its end, in its own process group, and return what it printed.

    Args:
        argv: program and arguments; never a shell line.
        timeout: seconds after which the whole group is killed.
        env: variables laid over this process's environment; None takes one away.
        check: raise when the exit status is not zero.
        bound: send it SIGTERM when this process is killed; for what runs for minutes and holds on to things.

    Raises:
        CommandError: not found, timed out, or failed while `check` is set; carries the output's end.
    """
    laid: dict[str, str | None] = {**os.environ, **(env or {})}
    merged = {name: value for name, value in laid.items() if value is not None}
    if bound and shutil.which(argv[0], path=merged.get("PATH")) is None:
        raise _missing(argv)
    wrapper = (sys.executable, "-I", "-S", str(bound_module.__file__), str(os.getpid())) if bound else ()
    try:
        process = subprocess.Popen(
            [*wrapper, *argv],
            cwd=cwd,
            env=merged,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except FileNotFoundError:
        raise _missing(argv) from None
    except OSError as error:
        raise CommandError(f"{argv[0]} could not be started", why=str(error)) from None
    stdout, stderr = _output(process, argv, stdin, timeout)
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


def _output(
    process: subprocess.Popen[bytes], argv: Sequence[str], stdin: bytes | None, timeout: float
) -> tuple[bytes, bytes]:
    """Return what a command prints until its end; whatever comes between, nothing of it runs on."""
    try:
        return process.communicate(stdin, timeout=timeout)
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


def _missing(argv: Sequence[str]) -> CommandError:
    return CommandError(f"{argv[0]} is not installed", why=f"needed for: {quoted(argv)}", do=f"install {argv[0]}")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and everything it started; only a group that this module made."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)


def _tail(stdout: bytes, stderr: bytes) -> str:
    lines = (stdout + b"\n" + stderr).decode(errors="replace").splitlines()
    return "\n".join([line for line in lines if line.strip()][-KEEP_LINES:])
