"""One file over HTTP into a partial file: resumed after a break, hashed on the way, never longer than it may be."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2
from unearth.link import Link

from seatrial.model.errors import FetchError, IntegrityError, Interrupted
from seatrial.ports.files import CHUNK, disk_errors, need_room
from seatrial.ports.pip_config import masked
from seatrial.ports.web import BACKOFF, TRANSIENT, Session, advice, plain

SPARE = 64 << 20
"""Bytes that are left free on the disk beyond what a download needs."""


class Advance(Protocol):
    """Take how many bytes have come since the last call; negative when some were thrown away."""

    def __call__(self, amount: int, /) -> None:
        """Add to what is done."""
        ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """What to fetch, and where the bytes go until they are all there."""

    url: str
    filename: str
    sha256: str
    size: int | None
    part: Path


class _Broken(Exception):
    """The transfer stopped before its end; what came is kept."""


def transfer(
    session: Session, job: Transfer, *, advance: Advance, say: Callable[[str], None], stop: threading.Event
) -> None:
    """Bring `job.part` to its full length and check its digest.

    A partial file of an earlier run is continued. When the digest is then wrong the file is thrown away and fetched
    once more from the start, because the old part may be to blame; a wrong digest after that is an error.

    Raises:
        FetchError: refused, or broken off more often than pip's `retries` allows.
        IntegrityError: the source serves other bytes.
        DiskError: no room.
        Interrupted: `stop` was set.
    """
    started_with = _length(job.part)
    digest = _complete(session, job, advance, say, stop)
    if digest == job.sha256:
        return
    had = _discard(job.part, advance)
    if started_with:
        say(f"{job.filename}: the bytes kept from an earlier run do not fit: thrown away, fetching it again")
        digest = _complete(session, job, advance, say, stop)
        if digest == job.sha256:
            return
        had = _discard(job.part, advance)
    raise IntegrityError(
        f"{job.filename} has other bytes than its lock says: thrown away",
        why=f"{masked(job.url)} gave {had} bytes with sha256 {digest}, expected {job.sha256}",
        do="check the index or mirror that pip is configured for",
    )


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _discard(part: Path, advance: Advance) -> int:
    had = _length(part)
    part.unlink(missing_ok=True)
    advance(-had)
    return had


def _complete(
    session: Session, job: Transfer, advance: Advance, say: Callable[[str], None], stop: threading.Event
) -> str:
    """Fetch until the end, resuming after breaks; return the digest of the whole."""
    with disk_errors(job.part):
        job.part.parent.mkdir(parents=True, exist_ok=True)
    hasher = hashlib.sha256()
    have = 0
    if _length(job.part):
        with job.part.open("rb") as stream:
            while block := stream.read(CHUNK):
                hasher.update(block)
                have += len(block)
        advance(have)
    if have and (hasher.hexdigest() == job.sha256 or (job.size is not None and have >= job.size)):
        return hasher.hexdigest()
    if job.url.startswith("file:"):
        return _copy(job, advance, have)
    state = _State(job, hasher, have)
    failures = 0
    furthest = state.have
    while True:
        try:
            state.pull(session, advance, say, stop)
        except _Broken as broken:
            failures = 1 if state.have > furthest else failures + 1
            furthest = max(furthest, state.have)
            if failures > session.retries or "CERTIFICATE" in str(broken):
                raise FetchError(
                    f"{job.filename} could not be fetched", why=f"{masked(job.url)}: {broken}", do=advice(str(broken))
                ) from None
            say(f"{job.filename}: {broken}; continuing at {state.have / 1e6:.1f} MB")
            session.sleep(BACKOFF * 2**failures)
        else:
            return state.hasher.hexdigest()


def _copy(job: Transfer, advance: Advance, have: int) -> str:
    """Copy a file of this machine from its start; resuming would save nothing."""
    advance(-have)
    source = Link(job.url).file_path
    hasher = hashlib.sha256()
    try:
        origin = source.open("rb")
    except OSError as error:
        raise FetchError(f"{job.filename} could not be read", why=f"{source}: {error.strerror}") from None
    with origin, disk_errors(job.part):
        need_room(job.part, source.stat().st_size + SPARE, job.filename)
        with job.part.open("wb") as out:
            while block := origin.read(CHUNK):
                out.write(block)
                hasher.update(block)
                advance(len(block))
    return hasher.hexdigest()


class _State:
    """The bytes so far of one transfer: their number and their running digest."""

    def __init__(self, job: Transfer, hasher: hashlib._Hash, have: int) -> None:
        self.job = job
        self.hasher = hasher
        self.have = have

    def pull(self, session: Session, advance: Advance, say: Callable[[str], None], stop: threading.Event) -> None:
        """Send one request and take its body; _Broken when it ends early."""
        headers = {"Accept-Encoding": "identity"}
        if self.have:
            headers["Range"] = f"bytes={self.have}-"
        try:
            with session.stream("GET", self.job.url, headers=headers) as answer:
                self._begin(answer, advance, say)
                self._take(answer, advance, stop)
        except (httpx2.TransportError, httpx2.TooManyRedirects) as error:
            raise _Broken(plain(error)) from None

    def _begin(self, answer: httpx2.Response, advance: Advance, say: Callable[[str], None]) -> None:
        """Judge the status line; afterwards the body continues at `have`."""
        status = answer.status_code
        if status in TRANSIENT:
            raise _Broken(f"answered {status} {answer.reason_phrase}")
        if status == 416 or (status == 206 and not self._continues(answer)):
            had = self.have
            self._restart(advance)
            raise _Broken(f"the server does not continue where the first {had} bytes end")
        if status == 200 and self.have:
            say(f"{self.job.filename}: the server cannot resume, starting again at the first byte")
            self._restart(advance)
        if status not in (200, 206):
            why = f"{masked(str(answer.url))} answered {status} {answer.reason_phrase}"
            raise FetchError(f"{self.job.filename} could not be fetched", why=why, do=advice(why))
        announced = answer.headers.get("Content-Length", "")
        length = int(announced) if announced.isdigit() else 0
        if self.job.size is not None and length and self.have + length != self.job.size:
            raise IntegrityError(
                f"{self.job.filename} has {self.have + length} bytes at its source and {self.job.size} in its lock",
                why=masked(str(answer.url)),
                do="check the index or mirror that pip is configured for",
            )
        need_room(self.job.part, length + SPARE, self.job.filename)

    def _continues(self, answer: httpx2.Response) -> bool:
        return answer.headers.get("Content-Range", "").replace("=", " ").startswith(f"bytes {self.have}-")

    def _restart(self, advance: Advance) -> None:
        advance(-self.have)
        self.job.part.unlink(missing_ok=True)
        self.hasher = hashlib.sha256()
        self.have = 0

    def _take(self, answer: httpx2.Response, advance: Advance, stop: threading.Event) -> None:
        with disk_errors(self.job.part), self.job.part.open("ab") as out:
            for block in answer.iter_raw():  # as it comes: what is gathered first would be lost in a break
                if stop.is_set():
                    raise Interrupted("the fetch was stopped", do="run the same again: it continues where it stood")
                out.write(block)
                self.hasher.update(block)
                self.have += len(block)
                advance(len(block))
                if self.job.size is not None and self.have > self.job.size:
                    break
        if self.job.size is not None and self.have < self.job.size:
            raise _Broken("the connection ended early")
