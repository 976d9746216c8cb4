"""Single members of a wheel, read by HTTP range (or from a local file) without fetching the whole."""

from __future__ import annotations

import io
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import PurePosixPath

from unearth.link import Link

from seatrial.model.errors import IntegrityError
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index, Wanted
from seatrial.ports.parallel import in_parallel
from seatrial.ports.ranges import FileRanges, HttpRanges, Ranges, RangesRefused

TAIL = 512 << 10
"""Bytes read at once from the archive's end: the central directory of a wheel with some thousand members."""
GAP = 64 << 10
"""Unwanted bytes between two members that are read along, because a request costs more than they do."""
LONGEST = 4 << 20
"""Bytes of one range request; longer stretches are split so that they run in parallel."""
PARALLEL = 6


class RemoteWheel:
    """The members of a wheel by name, each read when it is asked for; :meth:`prefetch` reads many with few requests.

    Raises:
        IntegrityError: no zip archive, truncated, a member with an unsafe or doubled name, or a wrong checksum.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._window = _Window(ranges)
        try:
            self._zip = zipfile.ZipFile(self._window)
        except (zipfile.BadZipFile, OSError) as error:
            raise self._bad(str(error)) from None
        self._infos = {info.filename: info for info in self._zip.infolist()}
        for name in self._infos:
            if not safe_name(name):
                raise self._bad(f"its member {name!r} would be written outside of its folder")
        if len(self._infos) != len(self._zip.infolist()):
            raise self._bad("two of its members have the same name")

    @property
    def size(self) -> int:
        """Return the length of the whole wheel in bytes."""
        return self._ranges.size

    @property
    def traffic(self) -> int:
        """Return how many bytes came over the network for it."""
        return self._ranges.traffic

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the files in it, in the archive's order."""
        return tuple(name for name, info in self._infos.items() if not info.is_dir())

    @property
    def dist_info(self) -> str:
        """Return the name of the one `.dist-info` folder."""
        folders = {name.split("/")[0] for name in self.names if name.split("/")[0].endswith(".dist-info")}
        if len(folders) != 1:
            raise self._bad(f"it has {len(folders)} .dist-info folders instead of one")
        return folders.pop()

    def read(self, name: str) -> bytes:
        """Return one member's bytes, unpacked; KeyError when there is none of that name."""
        info = self._infos[name]
        try:
            return self._zip.read(info)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise self._bad(f"{name}: {error}") from None

    def record(self) -> bytes:
        """Return the wheel's RECORD."""
        try:
            return self.read(f"{self.dist_info}/RECORD")
        except KeyError:
            raise self._bad("it has no RECORD") from None

    def prefetch(self, names: Iterable[str]) -> int:
        """Read the stretches that hold these members, in parallel; return how many requests that took."""
        starts = [*sorted(info.header_offset for info in self._infos.values()), self._zip.start_dir]
        spans = []
        for name in names:
            begin = self._infos[name].header_offset
            spans.append((begin, starts[bisect_right(starts, begin)]))
        stretches = coalesced(spans)
        for start, data in in_parallel(
            lambda span: (span[0], self._ranges.read_range(span[0], span[1] - span[0])), stretches, PARALLEL
        ):
            self._window.keep(start, data)
        return len(stretches)

    def _bad(self, why: str) -> IntegrityError:
        return IntegrityError(
            f"{PurePosixPath(self._ranges.shown).name} is not a sound wheel",
            why=f"{self._ranges.shown}: {why}",
            do="fetch it again, or use another index",
        )


def open_remote(index: Index, wanted: Wanted, *, cache: Cache, console: Console) -> RemoteWheel:
    """Open a wheel for reading single members: from the cache or this machine where it is there, else by range.

    Where ranges are not served the whole file is fetched, and that is announced. Only then, or from the cache, has the
    file's own digest been checked; otherwise the caller trusts RECORD (against a lock) and the members against it.
    """
    hit = cache.get(wanted.sha256, wanted.size)
    if hit is not None:
        return RemoteWheel(FileRanges(hit))
    located = index.locate(wanted)
    assert located.found is not None
    if located.found.url.startswith("file:"):
        return RemoteWheel(FileRanges(Link(located.found.url).file_path))
    try:
        return RemoteWheel(HttpRanges(index.session, located.found.url))
    except RangesRefused as refused:
        size = f" ({located.size / 1e6:.0f} MB)" if located.size else ""
        console.fallback(f"{refused}: fetching all of {wanted.filename}{size}")
    return RemoteWheel(FileRanges(index.download(located, cache=cache, console=console)))


class _Window(io.RawIOBase):
    """A seekable file over ranges that remembers what it has read."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__()
        self._ranges = ranges
        self._at = 0
        self._starts: list[int] = []
        self._blocks: list[bytes] = []
        tail = max(0, ranges.size - TAIL)
        self.keep(tail, ranges.read_range(tail, ranges.size - tail))

    def keep(self, start: int, data: bytes) -> None:
        """Remember bytes that were read from `start` on."""
        place = bisect_right(self._starts, start)
        self._starts.insert(place, start)
        self._blocks.insert(place, data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._ranges.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = self._ranges.size - self._at
        size = left if size is None or size < 0 else min(size, left)
        data = bytearray()
        while len(data) < size:
            data += self._some(self._at + len(data), size - len(data))
        self._at += len(data)
        return bytes(data)

    def _some(self, start: int, size: int) -> bytes:
        """Return at least one byte from `start` on, from memory when it is there."""
        place = bisect_right(self._starts, start) - 1
        if place >= 0 and start < self._starts[place] + len(self._blocks[place]):
            begin = start - self._starts[place]
            return self._blocks[place][begin : begin + size]
        following = self._starts[place + 1] if place + 1 < len(self._starts) else self._ranges.size
        length = min(max(size, GAP), following - start)
        data = self._ranges.read_range(start, length)
        if not data:
            raise EOFError("the file is shorter than it was")
        self.keep(start, data)
        return data[:size]


def safe_name(name: str) -> bool:
    """Tell whether a member's name stays below the folder that it is unpacked into."""
    parts = name.split("/")
    return not (name.startswith("/") or "\\" in name or "\0" in name or ".." in parts or ":" in parts[0])


def coalesced(spans: Iterable[tuple[int, int]], gap: int = GAP, longest: int = LONGEST) -> list[tuple[int, int]]:
    """Return few stretches (begin, end) that cover all spans: near ones joined, long ones split."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return [(at, min(at + longest, end)) for begin, end in joined for at in range(begin, end, longest)]
