"""Run benches: people's lines on stderr, one JSON document on stdout; 1 when a limit is broken."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seatrial.model.errors import UsageError
from seatrial.ports.cache import Cache, default_root
from seatrial.ports.console import Console
from seatrial.ports.files import write_atomic
from seatrial.ports.index import open_index
from tests.bench import bench_build, bench_faults, bench_wheel
from tests.bench.frame import Bed, Bench, failed, machine, measure

BENCHES: tuple[Bench, ...] = (*bench_build.BENCHES, *bench_faults.BENCHES, *bench_wheel.BENCHES)
"""Every bench; a new module adds its own tuple here."""

ROOT = Path(__file__).parents[2]


def chosen(only: Sequence[str]) -> tuple[Bench, ...]:
    """Return the benches that the words name, each by its name or the part before a dot; all when there are no words.

    Raises:
        UsageError: a word names none.
    """
    for word in only:
        if not any(_named(bench, word) for bench in BENCHES):
            known = ", ".join(bench.name for bench in BENCHES)
            raise UsageError(f"there is no bench {word!r}", why=f"there are: {known}", do="choose one of these")
    return tuple(bench for bench in BENCHES if not only or any(_named(bench, word) for word in only))


def _named(bench: Bench, word: str) -> bool:
    return bench.name == word or bench.name.startswith(f"{word}.")


def run_all(benches: Sequence[Bench], console: Console, scratch_in: Path | None) -> dict[str, Any]:
    """Run benches one after the other, each in a fresh scratch folder, and return the whole result."""
    result: dict[str, Any] = {"on": machine(), "benches": {}}
    for bench in benches:
        scratch = Path(tempfile.mkdtemp(prefix="seatrial-bench-", dir=scratch_in))
        try:
            with console.step(f"{bench.name}: {bench.what}"):
                bed = Bed(ROOT, scratch, Cache(default_root(), console.detail), open_index(), console)
                row = measure(bench, bed)
                for name, value in row["numbers"].items():
                    console.detail(f"{name} = {value}")
                console.detail(row.get("error", "limits broken" if failed(row) else "within its limits"))
            result["benches"][bench.name] = row
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a bench, or the part before its dot; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON here as well")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where scratch folders stand (several GB)")
    asked = parser.parse_args(argv)
    console = Console(as_json=True)
    try:
        benches = chosen(asked.only)
    except UsageError as error:
        console.error(error)
        return error.code
    if asked.list:
        for bench in benches:
            console.line(f"{bench.name}: {bench.what}")
        return 0
    result = run_all(benches, console, asked.scratch)
    console.result(result)
    if asked.out:
        write_atomic(asked.out, (json.dumps(result, indent=2, sort_keys=True) + "\n").encode())
    return 1 if any(failed(row) for row in result["benches"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
