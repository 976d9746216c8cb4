"""Seed faults, have them judged, run the gate on good images, and write down what came of it.

`nox -s faults` runs all; `-- --ci` leaves out what takes a server of its own (save three) and the other base's image;
`-- NAME ...` runs faults and clean runs whose names begin so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seatrial.model.errors import SeatrialError
from seatrial.ports.console import Console
from seatrial.ports.engine import connect
from seatrial.ports.files import write_atomic
from tests.bench.frame import machine
from tests.faults.cheap import cheap_reading
from tests.faults.clean import BASES, CLEAN, Clean, try_clean
from tests.faults.derive import clear_abandoned
from tests.faults.good import Good, open_good
from tests.faults.honest import SAMPLE, compare
from tests.faults.judge import try_fault
from tests.faults.model import SUBJECTS, Fault, Outcome, Score, score
from tests.faults.table import FAULTS

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
WORKERS = 2
"""Images inspected at a time; a server has the machine to itself."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be run."""

    faults: tuple[Fault, ...]
    clean: tuple[Clean, ...]
    sample: int
    full: bool


def chosen(options: argparse.Namespace) -> Asked:
    """Return what the command line asks for; ValueError when a name fits nothing."""
    names: list[str] = options.names

    def fits(name: str) -> bool:
        return not names or any(name.startswith(word) for word in names)

    faults = tuple(
        fault
        for fault in FAULTS
        if fits(fault.name) and (fault.ci or not options.ci) and fault.subject in (options.only or SUBJECTS)
    )
    clean = () if options.only else tuple(c for c in CLEAN if fits(c.name) and (c.ci or not options.ci))
    if not faults and not clean:
        raise ValueError(f"no fault and no clean run begins with {', '.join(names) or 'that'}")
    sample = 0 if names else 1 if options.ci else len(SAMPLE)
    return Asked(faults, clean, sample, options.full)


@dataclass(slots=True)
class Ran:
    """What came of a run."""

    faults: list[Outcome]
    clean: list[Outcome]
    unlike: list[str]
    """Where the cheap reading and the whole one do not agree."""
    score: Score
    seconds: float


def run_all(asked: Asked, goods: Goods, console: Console) -> Ran:
    """Run everything that is asked for; images side by side in processes of their own, servers one by one.

    The processes are forked when the good image has been read, so that all of them have it.
    """
    begun = time.monotonic()
    beside = [fault.name for fault in asked.faults if fault.subject != "server"]
    alone = [fault for fault in asked.faults if fault.subject == "server"]
    tried: list[Outcome] = []
    good: list[Outcome] = []
    with cheap_reading():
        if beside or asked.clean:
            assert goods[BASES[0]].reading
        with _workers(goods) as pool:
            for outcome in pool.map(_try_fault, beside, itertools.repeat(asked.full)):
                tried.append(_said(outcome, console))
            for outcome in pool.map(_try_clean, [clean.name for clean in asked.clean], itertools.repeat(asked.full)):
                good.append(_said_clean(outcome, console))
        tried += [_said(try_fault(fault, goods[BASES[0]], full=asked.full), console) for fault in alone]
        unlike = [line for name in SAMPLE[: asked.sample] for line in compare(name, goods[BASES[0]])]
    for line in unlike:
        console.line(f"the cheap reading is not the whole one: {line}")
    return Ran(tried, good, unlike, score(asked.faults, tried, good), round(time.monotonic() - begun, 1))


_mine: list[Goods] = []
"""In a forked process: the good images, opened by its parent."""


@contextmanager
def _workers(goods: Goods) -> Iterator[ProcessPoolExecutor]:
    """Give processes; when the block is left early, what has not begun is not begun any more."""
    pool = ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork"), _begin, (goods,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(goods: Goods) -> None:
    """Start a forked process: connections cannot be shared, all else that is known can."""
    _mine.append(goods)
    for good in goods.values():
        good.client = connect()


def _try_fault(name: str, full: bool) -> Outcome:
    return try_fault(next(fault for fault in FAULTS if fault.name == name), _mine[0][BASES[0]], full=full)


def _try_clean(name: str, full: bool) -> Outcome:
    clean = next(clean for clean in CLEAN if clean.name == name)
    return try_clean(clean, _mine[0][clean.base], full=full)


def _said(outcome: Outcome, console: Console) -> Outcome:
    """Print one line for what was caught, three for what was not."""
    fault = next(fault for fault in FAULTS if fault.name == outcome.name)
    word = "caught" if outcome.caught else "open" if fault.open else "LOST"
    console.line(f"{word:<6} {outcome.seconds:>6.1f} s  {fault.name}: {fault.check}")
    if not outcome.caught:
        console.line(f"        expected {', '.join(fault.words)}")
        console.line(f"        got {outcome.error or ', '.join(outcome.by) or 'no objection'}: {outcome.said}")
    return outcome


def _said_clean(outcome: Outcome, console: Console) -> Outcome:
    """Print one line for a good image that is allowed, two for one that is not."""
    alarm = outcome.by or outcome.error
    console.line(f"{'ALARM' if alarm else 'clean':<6} {outcome.seconds:>6.1f} s  {outcome.name}")
    if alarm:
        console.line(f"        {outcome.error or outcome.said}")
    return outcome


def failed(ran: Ran) -> list[str]:
    """Return what makes a run bad: a lost fault, a false alarm, an untrue reading, a mark that is out of date."""
    opened = {fault.name for fault in FAULTS if fault.open}
    wrong = [f"{name} was not caught" for name in ran.score.lost if name not in opened]
    wrong += [
        f"{one.name} is marked as open and was caught: take the mark away"
        for one in ran.faults
        if one.name in opened and one.caught
    ]
    wrong += [f"{one.name} is good and was refused" for one in ran.clean if one.by or one.error]
    return wrong + ran.unlike


def result(ran: Ran, goods: Goods) -> dict[str, Any]:
    """Return the whole run as plain values."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "schema": "seatrial.faults/1",
        "date": now,
        "on": machine(),
        "images": {base: good.digest for base, good in sorted(goods.items())},
        "seconds": ran.seconds,
        "score": {
            "seeded": ran.score.seeded,
            "caught": ran.score.caught,
            "clean": ran.score.clean,
            "false_alarms": ran.score.false_alarms,
            "open": sum(fault.open != "" for fault in FAULTS if fault.name in {one.name for one in ran.faults}),
        },
        "faults": {one.name: {**one.row(), "date": now[:10]} for one in ran.faults},
        "clean": {one.name: {**one.row(), "date": now[:10]} for one in ran.clean},
    }


def kept(new: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a result in which what was not run this time stands as it was."""
    old = json.loads(path.read_text()) if path.is_file() else {}
    names = {"faults": {fault.name for fault in FAULTS}, "clean": {one.name for one in CLEAN}}
    whole = {
        part: {name: row for name, row in {**old.get(part, {}), **new[part]}.items() if name in names[part]}
        for part in names
    }
    faults, clean = whole["faults"].values(), whole["clean"].values()
    numbers = {
        "seeded": len(faults),
        "caught": sum(row["caught"] for row in faults),
        "clean": len(clean),
        "false_alarms": sum(bool(row["by"] or row["error"]) for row in clean),
        "open": sum(fault.open != "" for fault in FAULTS if fault.name in whole["faults"]),
    }
    return {**new, "images": {**old.get("images", {}), **new["images"]}, "score": numbers, **whole}


class Goods(dict[str, Good]):
    """The good images by base; one is opened when it is first asked for."""

    def __init__(self, checkout: Path, scratch: Path, console: Console) -> None:
        super().__init__()
        self._checkout, self._scratch, self._console = checkout, scratch, console

    def __missing__(self, base: str) -> Good:
        self[base] = open_good(connect(), self._checkout, base, self._scratch, self._console)
        return self[base]


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults and clean runs whose names begin so")
    parser.add_argument("--ci", action="store_true", help="leave out what is run by night")
    parser.add_argument("--full", action="store_true", help="read every image whole, and start every process in it")
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="faults of this subject alone; repeatable")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the checkout that the images were built from")
    parser.add_argument("--scratch", type=Path, help="where temporary files stand (2 GB)")
    parser.add_argument("--out", type=Path, help="write the result here")
    parser.add_argument(
        "--keep", action="store_true", help=f"bring {RESULTS.name}, from which the page is made, up to date"
    )
    parser.add_argument("--list", action="store_true", help="print the names and end")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a fault got through or a good image did not."""
    parser = arguments()
    options = parser.parse_args(argv)
    if options.list:
        for fault in FAULTS:
            sys.stdout.write(f"{fault.name}: {fault.what}\n")
        return 0
    console = Console()
    try:
        asked = chosen(options)
    except ValueError as error:
        parser.error(str(error))
    try:
        clear_abandoned(connect())
        with tempfile.TemporaryDirectory(prefix="seatrial-faults-", dir=options.scratch) as folder:
            goods = Goods(options.checkout.resolve(), Path(folder), console)
            goods[BASES[0]]
            ran = run_all(asked, goods, console)
            told = result(ran, goods)
    except SeatrialError as error:
        console.error(error)
        return error.code
    except KeyboardInterrupt:
        return 130
    if options.out:
        write_atomic(options.out, (json.dumps(told, indent=1, sort_keys=True) + "\n").encode())
    if options.keep:
        write_atomic(RESULTS, (json.dumps(kept(told, RESULTS), indent=1, sort_keys=True) + "\n").encode())
    for line in (wrong := failed(ran)):
        console.line(line, style="red")
    numbers = ran.score
    console.line(
        f"{numbers.caught} of {numbers.seeded} faults caught, {numbers.false_alarms} false alarms in {numbers.clean} "
        f"clean runs, {ran.seconds:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
