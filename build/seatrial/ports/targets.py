"""The machine that wheels are chosen for, and how well a wheel suits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

OLDEST_GLIBC = {"x86_64": 5, "i686": 5}
"""Minor version of the first manylinux level of a machine; 17 for all others."""
LEGACY_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that a wheel has to run on."""

    python: str = "3.11"
    machine: str = "x86_64"
    glibc: tuple[int, int] = (2, 36)
    """Newest manylinux level that is accepted; Debian 12 has 2.36."""

    def tags(self) -> list[Tag]:
        """Return the tags of wheels that run there, best first."""
        version = tuple(int(part) for part in self.python.split("."))
        platforms = []
        for minor in range(self.glibc[1], OLDEST_GLIBC.get(self.machine, 17) - 1, -1):
            platforms.append(f"manylinux_{self.glibc[0]}_{minor}_{self.machine}")
            if minor in LEGACY_NAMES:
                platforms.append(f"{LEGACY_NAMES[minor]}_{self.machine}")
        platforms.append(f"linux_{self.machine}")
        interpreter = "cp" + "".join(self.python.split(".")[:2])
        return [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, interpreter=interpreter, platforms=platforms),
        ]


@lru_cache(maxsize=8)
def ranks_of(target: Target) -> Mapping[Tag, int]:
    """Return how good each tag that runs on the target is; smaller is better."""
    return {tag: place for place, tag in enumerate(target.tags())}


def rank_of(filename: str, rank: Mapping[Tag, int]) -> int | None:
    """Return how well a file suits, smaller is better; None when it does not run there, last for a source archive."""
    if not filename.endswith(".whl"):
        return len(rank)
    return min((rank[tag] for tag in parse_wheel_filename(filename)[3] if tag in rank), default=None)
