"""What a bench is: one function that measures, and the limits that its numbers are held to."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seatrial.model.errors import SeatrialError
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index, Wanted

Numbers = dict[str, float]
"""What was measured, by name; the unit is the name's ending (`_s`, `_mb`), none for ratios."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound that one number has to keep."""

    number: str
    bound: Literal["at_least", "at_most"]
    value: float

    def met(self, numbers: Mapping[str, float]) -> bool:
        """Tell whether the number is there and keeps the bound."""
        got = numbers.get(self.number)
        if got is None:
            return False
        return got >= self.value if self.bound == "at_least" else got <= self.value


@dataclass(frozen=True, slots=True)
class Bed:
    """What a bench may use: a scratch folder of its own, the cache, the index and the terminal."""

    root: Path
    """The checkout."""
    scratch: Path
    cache: Cache
    index: Index
    console: Console

    def fetch(self, distribution: str, file: str, sha256: str) -> Path:
        """Return a file of the index, from the cache when it was fetched before; not part of what is timed."""
        return self.index.download(Wanted(distribution, file, sha256), cache=self.cache, console=self.console)


@dataclass(frozen=True, slots=True)
class Bench:
    """One row of the table in :mod:`tests.bench.run`."""

    name: str
    what: str
    """What is compared with what, in one sentence."""
    run: Callable[[Bed], Numbers]
    limits: tuple[Limit, ...] = ()


@dataclass(slots=True)
class Lap:
    """Seconds that something took; CPU seconds count this process and the children that it waited for."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def lap() -> Iterator[Lap]:
    """Time the block."""
    taken = Lap()
    before, started = os.times(), time.perf_counter()
    yield taken
    taken.wall = time.perf_counter() - started
    after = os.times()
    taken.cpu = sum(after[:4]) - sum(before[:4])


def measure(bench: Bench, bed: Bed) -> dict[str, Any]:
    """Run a bench and return its row of the result; a bench that fails says why and meets no limit."""
    row: dict[str, Any] = {"what": bench.what}
    numbers: Numbers = {}
    try:
        numbers = bench.run(bed)
    except SeatrialError as error:
        row["error"] = str(error)
    row["numbers"] = {name: round(value, 4) for name, value in numbers.items()}
    row["limits"] = [
        {"number": limit.number, limit.bound: limit.value, "met": limit.met(numbers)} for limit in bench.limits
    ]
    return row


def failed(row: Mapping[str, Any]) -> bool:
    """Tell whether a row of the result is an error or breaks a limit."""
    return "error" in row or not all(limit["met"] for limit in row["limits"])


def machine() -> dict[str, Any]:
    """Return what the numbers were measured on."""
    return {
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
