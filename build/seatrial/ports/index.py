"""The package index, as the user's pip configuration names it: find files, fetch them into the cache."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from unearth.link import Link

from seatrial.model.errors import FetchError, UsageError
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.download import SPARE, Transfer, transfer
from seatrial.ports.files import need_room, sha256_file
from seatrial.ports.pages import Pages
from seatrial.ports.parallel import in_parallel
from seatrial.ports.pip_config import PipConfig, masked, read_pip_config
from seatrial.ports.targets import Target, rank_of, ranks_of
from seatrial.ports.web import Session, advice, plain

__all__ = ["Found", "Index", "Pin", "Target", "Wanted", "open_index"]

PAGES_AT_ONCE = 12
"""Index pages that are read in parallel."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that a configured source offers. `url` may hold credentials: print :attr:`shown` instead."""

    distribution: str
    version: str
    filename: str
    url: str
    sha256: str | None
    """Bare SHA-256 that the source states; None when it states none."""
    size: int | None = None
    """Bytes that the source states; None when it states nothing."""

    @property
    def shown(self) -> str:
        """Return the URL without credentials, for messages."""
        return masked(self.url)

    @property
    def is_wheel(self) -> bool:
        """Tell a wheel from a source archive."""
        return self.filename.endswith(".whl")


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

    @classmethod
    def of(cls, found: Found) -> Wanted:
        """Ask for a file whose hash the source stated, as :meth:`Index.find_by_hashes` returns it."""
        if found.sha256 is None:
            raise UsageError(f"{found.filename} has no hash to ask for")
        return cls(found.distribution, found.filename, found.sha256, found.size, found)


class Index:
    """Every source that pip would ask; safe to use from several threads.

    Raises, from every method: FetchError (not there, unreachable, refused; with credentials masked).
    """

    def __init__(self, settings: Callable[[], PipConfig], transport: httpx2.BaseTransport | None = None) -> None:
        """Take where to read the settings; they are read when first something has to be fetched."""
        self._pages = Pages(settings, transport)

    @property
    def session(self) -> Session:
        """Return the HTTP session, made from the settings on first use."""
        return self._pages.session

    def offers(self, distribution: str) -> list[Found]:
        """Return every file of a distribution, of all versions and platforms."""
        return [self._found(distribution, version, link) for version, link in self._pages.releases(distribution)]

    def _found(self, distribution: str, version: str, link: Link) -> Found:
        stated = _stated(link)
        size = self.session.sizes.get(stated) if stated else None
        name = canonicalize_name(distribution)
        return Found(name, version, link.filename, link.url_without_fragment, stated, size)

    def find(self, distribution: str, version: str, filename: str | None = None) -> list[Found]:
        """Return the files of one release, wheels and source archive, of any platform; empty when there are none."""
        wanted = Version(version)
        return [
            found
            for found in self.offers(distribution)
            if _same(found.version, wanted) and filename in (None, found.filename)
        ]

    def find_by_hashes(
        self, distribution: str, version: str, hashes: Collection[str], target: Target | None = None
    ) -> Found:
        """Return the file that suits `target` best and whose SHA-256 is one of `hashes`; `sha256` is set in it.

        A source archive is returned only where no wheel suits. FetchError when nothing fits, saying what was offered.
        """
        ranks = ranks_of(target or Target())
        links = [link for link in self._pages.links(distribution) if _stated(link) in hashes]
        for found in _best_first((self._found(distribution, version, link) for link in links), ranks):
            return found
        candidates = self.find(distribution, version)
        for found in _best_first(candidates, ranks):
            if found.sha256 is None and (known := self.hashed(found)).sha256 in hashes:
                return known
        raise FetchError(
            f"no file of {distribution} {version} suits this machine and has a hash of its lock",
            why=self._why(candidates),
            do=advice(self.session.troubles()),
        )

    def find_many_by_hashes(self, pins: Sequence[Pin], target: Target | None = None) -> list[Found]:
        """Do :meth:`find_by_hashes` for many pins at once (index pages are read in parallel), in the pins' order."""

        def one(pin: Pin) -> Found:
            return self.find_by_hashes(pin.distribution, pin.version, pin.hashes, target)

        return in_parallel(one, pins, PAGES_AT_ONCE)

    def download(self, wanted: Wanted, *, cache: Cache, console: Console) -> Path:
        """Return the file in the cache; fetched, or resumed, when it is not there yet.

        Raises:
            FetchError: not offered, or the transfer failed after the configured number of retries.
            IntegrityError: other bytes than `sha256` (or `size`) arrived; they are thrown away.
            DiskError: no room.
        """
        hit = cache.get(wanted.sha256, wanted.size)
        if hit is not None:
            return hit
        located = self.locate(wanted)
        with console.progress(wanted.filename, located.size or 0) as bar:
            return self._fetch(located, cache, console, bar.advance, threading.Event())

    def fetch_many(
        self, wanted: Iterable[Wanted], *, cache: Cache, console: Console, label: str = "fetch", parallel: int = 4
    ) -> list[Path]:
        """Do :meth:`download` for many files, `parallel` at a time under one progress bar; paths in `wanted`'s order.

        The first error stops the rest; what arrived stays in the cache and partial files are resumed next time.
        """
        asked = list(wanted)
        stop = threading.Event()
        have = in_parallel(lambda item: cache.get(item.sha256, item.size), asked, parallel)
        missing = {item.sha256: item for item, path in zip(asked, have, strict=True) if path is None}
        located = in_parallel(self.locate, list(missing.values()), PAGES_AT_ONCE)
        sizes = [item.size for item in located]
        total = sum(size or 0 for size in sizes)
        if located:
            need_room(cache.root, total + SPARE, label)
        by_size = None not in sizes
        came: dict[str, Path] = {}
        with console.progress(label, total if by_size else len(located), unit="MB" if by_size else "files") as bar:

            def one(item: Wanted) -> None:
                count = bar.advance if by_size else _uncounted
                came[item.sha256] = self._fetch(item, cache, console, count, stop)
                if not by_size:
                    bar.advance(1)

            in_parallel(one, sorted(located, key=lambda item: -(item.size or 0)), parallel, stop)
        return [path or came[item.sha256] for item, path in zip(asked, have, strict=True)]

    def _fetch(
        self, item: Wanted, cache: Cache, console: Console, advance: Callable[[int], None], stop: threading.Event
    ) -> Path:
        with cache.locked(item.sha256):
            hit = cache.get(item.sha256, item.size)
            if hit is not None:
                advance(hit.stat().st_size)
                return hit
            assert item.found is not None
            part = cache.partial(item.sha256)
            job = Transfer(item.found.url, item.filename, item.sha256, item.size, part)
            transfer(self.session, job, advance=advance, say=console.detail, stop=stop)
            return cache.admit(part, item.sha256, item.filename)

    def locate(self, wanted: Wanted) -> Wanted:
        """Fill in where a file is offered; a file whose source states no hash is taken by its name."""
        if wanted.found is not None:
            return replace(wanted, size=wanted.size or wanted.found.size)
        links = [link for link in self._pages.links(wanted.distribution) if link.filename == wanted.filename]
        named = [self._found(wanted.distribution, "", link) for link in links]
        for found in sorted(named, key=lambda found: found.sha256 is None):
            if found.sha256 in (wanted.sha256, None):
                return replace(wanted, size=wanted.size or found.size, found=found)
        troubles = self.session.troubles()
        if named:
            why = f"{named[0].shown} states sha256 {named[0].sha256}, the lock says {wanted.sha256}"
            raise FetchError(f"{wanted.filename} is offered with other bytes only", why=why, do="use another index")
        raise FetchError(f"{wanted.filename} is on none of the configured indexes", why=troubles, do=advice(troubles))

    def hashed(self, found: Found) -> Found:
        """Return a file with its SHA-256: the stated one, or that of its bytes, read once, where none is stated."""
        if found.sha256 is not None:
            return found
        if found.url.startswith("file:"):
            return replace(found, sha256=sha256_file(Link(found.url).file_path))
        hasher = hashlib.sha256()
        try:
            with self.session.stream("GET", found.url, headers={"Accept-Encoding": "identity"}) as answer:
                answer.raise_for_status()
                for block in answer.iter_raw():
                    hasher.update(block)
        except httpx2.HTTPError as error:
            raise FetchError(f"{found.shown} could not be read", why=plain(error), do=advice(plain(error))) from None
        return replace(found, sha256=hasher.hexdigest())

    def _why(self, candidates: Sequence[Found]) -> str:
        offered = ", ".join(sorted(found.filename for found in candidates)[:6])
        parts = (f"offered: {offered}" if offered else "nothing of this release is offered", self.session.troubles())
        return "; ".join(part for part in parts if part)


def _stated(link: Link) -> str | None:
    return (link.hash_option or {}).get("sha256", [None])[0]


def _best_first(offered: Iterable[Found], ranks: Mapping[Tag, int]) -> list[Found]:
    """Return the files that run on the target, the best first."""
    scored = [(score, found) for found in offered if (score := rank_of(found.filename, ranks)) is not None]
    return [found for _, found in sorted(scored, key=lambda item: item[0])]


def _same(version: str, wanted: Version) -> bool:
    try:
        return Version(version) == wanted
    except InvalidVersion:
        return False


def _uncounted(amount: int) -> None:
    """Count nothing: the bar counts files."""


def open_index() -> Index:
    """Return the index of the user's pip configuration (`pip config list`: files and PIP_* variables)."""
    return Index(read_pip_config)
