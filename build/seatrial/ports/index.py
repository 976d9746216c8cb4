"""The package index, as the user's pip configuration names it: find files, fetch them into the cache."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.ports.cache import Cache
from seatrial.ports.console import Console


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that a wheel has to run on."""

    python: str = "3.11"
    machine: str = "x86_64"
    glibc: tuple[int, int] = (2, 36)
    """Newest manylinux level that is accepted; Debian 12 has 2.36."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that a configured source offers. `url` may hold credentials: print :attr:`shown` instead."""

    distribution: str
    version: str
    filename: str
    url: str
    sha256: str | None
    """Bare SHA-256 that the source states; None when it states none."""

    @property
    def shown(self) -> str:
        """Return the URL without credentials, for messages."""
        raise NotImplementedError

    @property
    def is_wheel(self) -> bool:
        """Tell a wheel from a source archive."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Pin:
    """One requirement of a lock: any one of the hashes will do."""

    distribution: str
    version: str
    hashes: frozenset[str]
    """Bare SHA-256 digests."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to have, by content."""

    distribution: str
    filename: str
    sha256: str
    size: int | None = None
    """Bytes; None when no lock states it."""
    found: Found | None = None
    """Where it was seen; None makes the index look it up by name and hash."""


class Index:
    """Every source that pip would ask; safe to use from several threads.

    Raises, from every method: FetchError (not there, unreachable, refused; with credentials masked).
    """

    def find(self, distribution: str, version: str, filename: str | None = None) -> list[Found]:
        """Return the files of one release, wheels and source archive, of any platform; empty when there are none."""
        raise NotImplementedError

    def find_by_hashes(
        self, distribution: str, version: str, hashes: Collection[str], target: Target | None = None
    ) -> Found:
        """Return the file that suits `target` best and whose SHA-256 is one of `hashes`; `sha256` is set in it.

        A source archive is returned only where no wheel suits. FetchError when nothing fits, saying what was offered.
        """
        raise NotImplementedError

    def find_many_by_hashes(self, pins: Sequence[Pin], target: Target | None = None) -> list[Found]:
        """Do :meth:`find_by_hashes` for many pins at once (index pages are read in parallel), in the pins' order."""
        raise NotImplementedError

    def download(self, wanted: Wanted, *, cache: Cache, console: Console) -> Path:
        """Return the file in the cache; fetched, or resumed, when it is not there yet.

        Raises:
            FetchError: not offered, or the transfer failed after the configured number of retries.
            IntegrityError: other bytes than `sha256` (or `size`) arrived; they are thrown away.
            DiskError: no room.
        """
        raise NotImplementedError

    def fetch_many(
        self, wanted: Iterable[Wanted], *, cache: Cache, console: Console, label: str = "fetch", parallel: int = 4
    ) -> list[Path]:
        """Do :meth:`download` for many files, `parallel` at a time under one progress bar; paths in `wanted`'s order.

        The first error stops the rest; what arrived stays in the cache and partial files are resumed next time.
        """
        raise NotImplementedError


def open_index() -> Index:
    """Return the index of the user's pip configuration (`pip config list`: files and PIP_* variables)."""
    raise NotImplementedError
