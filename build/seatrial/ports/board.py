"""A live board for a run that reports each finished case in a file: on a TTY one moving line, elsewhere plain lines."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seatrial.model.report import Case, Outcome
from seatrial.ports.console import UNSEEN, Console

LOOK = 0.3
"""Seconds between two looks at the file of finished cases, and between two drawings of the moving line."""

STYLES = {Outcome.PASSED: "dim", Outcome.NOT_SUPPORTED: "yellow"}


class Board:
    """Say how each case ended; on a terminal also which one is under way, and for how long."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        self._names = list(names)
        self._console = console
        self._ended: dict[str, Outcome] = {}
        self._begun = self._last = time.monotonic()
        self._said = ""
        """The reason that was printed last: a declaration may hold for dozens of cases in a row."""

    def take(self, event: Mapping[str, Any]) -> None:
        """Print how one case ended; for a bad one also why, once for those in a row."""
        case = Case.model_validate_json(json.dumps(event))
        self._ended[case.name] = case.outcome
        self._last = time.monotonic()
        self.clear()
        number = len(self._ended)
        text = f"{number:>3} of {len(self._names)}  {case.outcome.value:<13} {case.name}  {case.seconds:.1f} s"
        self._console.line(f"    {text}", style=STYLES.get(case.outcome, "red"))
        if case.outcome is Outcome.PASSED:
            return
        if case.reason and case.reason != self._said:
            self._console.detail(f"    {case.reason}")
        self._said = case.reason
        if case.log_line:
            self._console.detail(f"    log: {case.log_line}")

    def draw(self) -> None:
        """Draw the moving line again; does nothing where there is no terminal."""
        if not self._console.live:
            return
        width = shutil.get_terminal_size().columns - 1
        self._console.redraw(self.line(time.monotonic())[:width].translate(UNSEEN))

    def clear(self) -> None:
        """Take the moving line away, so that a plain one can be printed."""
        if self._console.live:
            self._console.redraw("")

    def line(self, now: float) -> str:
        """Return the moving line: what is under way, how long, and what has ended so far."""
        counts = Counter(outcome.value for outcome in self._ended.values())
        said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none ended"
        waiting = next((name for name in self._names if name not in self._ended), "")
        under_way = f"{waiting} {now - self._last:.0f} s" if waiting else "ending"
        return f"    {len(self._ended)} of {len(self._names)}  {under_way}  ({said}; {now - self._begun:.0f} s in all)"


@contextmanager
def followed(events: Path, names: Sequence[str], console: Console) -> Iterator[None]:
    """Show a run as long as the block lasts.

    Args:
        events: file to which one JSON line a finished case is appended; need not be there yet.
        names: cases in the order in which they run.
    """
    over = threading.Event()
    board = Board(names, console)

    def follow() -> None:
        at = 0
        while True:
            last = over.wait(LOOK)
            data = events.read_bytes()[at:] if events.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            at += len(whole)
            for line in whole.splitlines():
                board.take(json.loads(line))
            if last:
                board.clear()
                return
            board.draw()

    thread = threading.Thread(target=follow, name="smoke-events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5)
