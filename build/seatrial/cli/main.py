"""The command `seatrial`: parse words, run a verb, and catch every error in one place."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from seatrial import __version__
from seatrial.cli.verb import Context, Verb
from seatrial.cli.verbs import VERBS
from seatrial.flow.project import find_project
from seatrial.model.errors import DiskError, Interrupted, SeatrialError, UsageError
from seatrial.ports.console import Console, silence
from seatrial.ports.files import CLOSED, FULL


class Parser(argparse.ArgumentParser):
    """Raise UsageError where argparse would print its own form and exit."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into one line."""
        raise UsageError(message, do=f"see: {self.prog} --help")


def build_parser() -> Parser:
    """Return the parser of all verbs; the documentation pages are made from it."""
    parser = Parser(prog="seatrial", description="Build vLLM, try every image, and only then give it a name.")
    parser.add_argument("--version", action="version", version=f"seatrial {__version__}")
    commands = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for verb in VERBS:
        sub = commands.add_parser(verb.name, help=verb.summary, description=verb.description)
        sub.add_argument(
            "--json", action="store_true", help="print the result as JSON on stdout, everything else on stderr"
        )
        verb.arguments(sub)
        sub.set_defaults(run=verb)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console(as_json="--json" in words)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        options = _parse(words)
        verb: Verb = options.run
        return verb.run(Context(find_project(Path.cwd()), console), options)
    except SeatrialError as error:
        return _say(console, error)
    except KeyboardInterrupt:
        return _say(console, Interrupted("stopped", do="run the same again: finished stages are kept"))
    except OSError as error:
        return _say(console, _disk(error) or _fault(error))
    except Exception as error:
        return _say(console, _fault(error))


def _parse(words: list[str]) -> argparse.Namespace:
    """Return the options of a verb; some verbs take every word as it is."""
    for verb in VERBS:
        if verb.passes_words and words[:1] == [verb.name]:
            return argparse.Namespace(run=verb, words=words[1:])
    return build_parser().parse_args(words)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that what was half made is removed."""
    raise KeyboardInterrupt


def _disk(error: OSError) -> DiskError | None:
    """Return what a disk that is full or closed means, or None for any other complaint of the system."""
    if error.errno in FULL:
        return DiskError("no room left on the disk", why=str(error), do="free some and run the same again")
    if error.errno in CLOSED:
        return DiskError("a path cannot be used", why=str(error), do="check how it is written, its owner and mode")
    return None


def _fault(error: Exception) -> SeatrialError:
    """Keep the traceback of a fault of our own in a file; the screen gets one line."""
    kept = ""
    with contextlib.suppress(OSError):  # the disk may be what is at fault
        handle, kept = tempfile.mkstemp(prefix="seatrial-fault-", suffix=".txt")
        with os.fdopen(handle, "w") as stream:
            stream.write("".join(traceback.format_exception(error)))
    return SeatrialError(
        f"{type(error).__name__}: {next(iter(str(error).splitlines()), chr(32)).strip()}",
        why="a fault in seatrial itself",
        do=f"report it with {kept}" if kept else "report it",
    )


def _say(console: Console, error: SeatrialError) -> int:
    """Show an error and return its exit code, also where the stream that shows things is what failed."""
    try:
        _show(console, error)
    except OSError as trouble:
        for stream in (sys.stdout, sys.stderr):
            try:
                print(f"seatrial: {error.label}: {error.what}: {trouble}", file=stream, flush=True)
            except OSError:
                silence(stream)
    return error.code


def _show(console: Console, error: SeatrialError) -> None:
    console.error(error)
    output = getattr(error, "output", "")
    if output:
        console.detail("the end of its output:")
        for line in output.splitlines():
            console.detail(f"| {line}")
    console.result({"error": {"label": error.label, "what": error.what, "why": error.why, "do": error.do}})


if __name__ == "__main__":
    sys.exit(main())
