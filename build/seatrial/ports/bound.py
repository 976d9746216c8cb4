"""Become a command that is told to end when the process that asked for it dies, however it dies.

Run as a script in front of the command: `python bound.py PID PROGRAM [ARGUMENT ...]`. Linux only: the kernel keeps the
wish over `exec` (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
TOO_LATE = 128 + signal.SIGTERM
"""Exit status when the asking process is gone already."""


def become(parent: int, argv: list[str]) -> None:
    """Turn this process into a command that gets SIGTERM when `parent` dies; returns only by raising."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(TOO_LATE)
    # Python ignores this one, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(argv[0], argv)  # noqa: S606


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
