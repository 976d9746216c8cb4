"""Reads a server's log: is there a traceback, and which line says why it died."""

from __future__ import annotations

import re

PREFIX = re.compile(
    r"^(?:\([\w-]+ pid=\d+\)\s*)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d [\d:]+ \[[^\]]*\]\s?)?"
)
"""What vLLM puts in front of a line: process, level, time, place."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What some releases put around a line's prefix, also where nobody can see colours."""

TRACEBACK = "Traceback (most recent call last)"
EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Unsupported|Exit|Interrupt)\b: \S.*")
VALUE_ERROR = re.compile(r"^\s*Value error, \S.*")
CRASH = re.compile(
    r".*(?:Fatal Python error|Segfault encountered|Segmentation fault|Illegal instruction|Out of memory)"
)
CONSEQUENCE = re.compile(
    r"EngineDeadError|EngineCore encountered an issue|Engine core initialization failed|Worker failed with error"
    r"|WorkerProc initialization failed|CancelledError|died unexpectedly"
)
"""Exceptions that only say that something else went wrong before."""

KEEP = 500
"""Characters of a line that are kept."""

TAIL_LINES, TAIL_CHARS = 200, 40_000
"""How much of a log's end a report holds."""


def bare(line: str) -> str:
    """Return a line without colours and vLLM's prefix, its indentation kept."""
    return PREFIX.sub("", COLOUR.sub("", line), count=1).rstrip()


def tracebacks(log: str) -> list[int]:
    """Return the numbers (from 1) of the lines at which a traceback begins."""
    return [number for number, line in enumerate(log.splitlines(), 1) if TRACEBACK in line]


def telling_line(log: str) -> str:
    """Return the line that says why a server died or refused, or an empty text.

    That is the last exception before the processes began to report each other's
    death; a validator's own message is better than the exception that wraps it.
    """
    causes: list[str] = []
    consequences: list[str] = []
    for raw in log.splitlines():
        line = bare(raw)
        if VALUE_ERROR.match(line) or CRASH.match(line):
            causes.append(line.strip())
        elif EXCEPTION.match(line):
            if CONSEQUENCE.search(line):
                consequences.append(line)
                if causes:
                    break
            elif not ("ValidationError" in line and causes and causes[-1].startswith("Value error")):
                causes.append(line)
    if causes:
        return causes[-1][:KEEP]
    if consequences:
        return consequences[-1][:KEEP]
    errors = [bare(line) for line in log.splitlines() if re.search(r"\b(?:ERROR|CRITICAL)\b|\berror: ", line)]
    return errors[-1].strip()[:KEEP] if errors else ""


def tail(log: str) -> str:
    """Return the end of a log, short enough for a report."""
    return "\n".join(log.splitlines()[-TAIL_LINES:])[-TAIL_CHARS:]
