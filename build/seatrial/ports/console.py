"""The one door to the terminal: a live board on a TTY, plain lines elsewhere, folds and annotations in CI."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any, Protocol

from rich.console import Console as RichConsole
from rich.markup import escape

from seatrial.model.errors import SeatrialError

PROGRESS_LINE_EVERY = 10.0
"""Seconds between two progress lines where there is no terminal to redraw."""


UNSEEN = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\t\n"}
"""What a terminal would obey rather than show; names in wheels and lines of logs come from strangers."""


class Progress(Protocol):
    """Take the amount that has been done since the last call, in the unit that the total has."""

    def advance(self, amount: int) -> None:
        """Add to what is done."""
        ...


class _Lasting(RichConsole):
    """Fall silent when the reader of a pipe has gone, where rich would end the process with a code that means more."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence(self.file)


def silence(stream: IO[str]) -> None:
    """Let a stream that takes nothing any more lead nowhere, so that its last flush cannot fail either."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Console:
    """Print what a verb does, for people or for programs.

    With `as_json`, people's lines go to stderr and :meth:`result` prints one JSON document to stdout.
    A reader who closes the pipe changes nothing but that nothing more is shown; a character that the stream's
    encoding lacks is shown as its number.
    """

    def __init__(self, *, as_json: bool = False, out: IO[str] | None = None, ci: bool | None = None) -> None:
        stream = out or (sys.stderr if as_json else sys.stdout)
        self.as_json = as_json
        self.ci = bool(os.environ.get("GITHUB_ACTIONS")) if ci is None else ci
        self._stream = stream
        for text in (stream, sys.stdout):
            if isinstance(text, io.TextIOWrapper):
                text.reconfigure(errors="backslashreplace")
        self._rich = _Lasting(file=stream, highlight=False, soft_wrap=True)
        self._lock = threading.Lock()
        self._answered = False
        self.fallbacks: list[str] = []

    @property
    def live(self) -> bool:
        """Tell whether lines can be redrawn."""
        return self._rich.is_terminal and not self.ci

    def line(self, text: str, *, style: str = "") -> None:
        """Print one line."""
        with self._lock:
            self._rich.print(escape(text.translate(UNSEEN)), style=style or None)

    def detail(self, text: str) -> None:
        """Print a line that belongs to the step above it."""
        self.line(f"    {text}", style="dim")

    def fallback(self, text: str) -> None:
        """Announce a second choice in one line and keep it for the record."""
        if text not in self.fallbacks:
            self.fallbacks.append(text)
        self.line(f"  ! {text}", style="yellow")

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Frame the lines of one stage; in CI they become a fold."""
        started = time.monotonic()
        if self.ci:
            self.line(f"::group::{name}")
        else:
            self.line(f"== {name}", style="bold")
        try:
            yield
        finally:
            if self.ci:
                self.line("::endgroup::")
            self.detail(f"{name}: {time.monotonic() - started:.1f} s")

    @contextlib.contextmanager
    def progress(self, label: str, total: int, *, unit: str = "MB") -> Iterator[Progress]:
        """Show how far something is; `total` in bytes when the unit is MB, in pieces otherwise."""
        bar = _Bar(self, label, total, unit)
        try:
            yield bar
        finally:
            bar.close()

    def error(self, error: SeatrialError) -> None:
        """Print an error: what, why, what next; as an annotation in CI as well."""
        if self.ci:
            self.line(f"::error title=seatrial {error.label}::{error}")
        self.line(f"seatrial: {error.label}: {error.what}", style="bold red")
        if error.why:
            self.line(f"  why: {error.why}")
        if error.do:
            self.line(f"  do:  {error.do}")

    def result(self, data: Any) -> None:
        """Print a verb's result as JSON on stdout, the first one only; does nothing unless `as_json` is set."""
        if not self.as_json or self._answered:
            return
        self._answered = True
        try:
            sys.stdout.write(json.dumps(data, indent=2, sort_keys=True) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            silence(sys.stdout)

    def redraw(self, text: str) -> None:
        """Replace the current line on a terminal; an empty text clears it."""
        with self._lock:
            self._stream.write("\r\x1b[2K" + text)
            self._stream.flush()


class _Bar:
    def __init__(self, console: Console, label: str, total: int, unit: str) -> None:
        self._console = console
        self._label = label
        self._total = total
        self._unit = unit
        self._done = 0
        self._shown = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            now = time.monotonic()
            if now - self._shown < (0.1 if self._console.live else PROGRESS_LINE_EVERY):
                return
            self._shown = now
            text = self._text()
        if self._console.live:
            self._console.redraw(text)
        else:
            self._console.detail(text)

    def _text(self) -> str:
        if self._unit == "MB":
            return f"{self._label}: {self._done / 1e6:.1f} of {self._total / 1e6:.1f} MB"
        return f"{self._label}: {self._done} of {self._total} {self._unit}"

    def close(self) -> None:
        if self._console.live:
            self._console.redraw("")
