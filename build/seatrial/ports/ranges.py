"""Stretches of a file, wherever it is: on this machine or behind a URL whose server answers range requests."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

import httpx2

from seatrial.model.errors import FetchError
from seatrial.ports.pip_config import masked
from seatrial.ports.web import BACKOFF, TRANSIENT, Session, advice, plain


class RangesRefused(Exception):
    """The server sends whole files only; the caller chooses what to do instead."""


class Ranges(Protocol):
    """A file of known length that can be read at any place."""

    size: int
    traffic: int
    """Body bytes that came over the network so far."""

    @property
    def shown(self) -> str:
        """Return where the file is, for messages."""
        ...

    def read_range(self, start: int, length: int) -> bytes:
        """Return exactly `length` bytes from `start` on."""
        ...


class FileRanges:
    """Ranges of a file on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.traffic = 0
        self.size = path.stat().st_size

    @property
    def shown(self) -> str:
        """Return the path."""
        return str(self._path)

    def read_range(self, start: int, length: int) -> bytes:
        """Return exactly `length` bytes from `start` on."""
        with self._path.open("rb") as stream:
            stream.seek(start)
            return stream.read(length)


class HttpRanges:
    """Ranges of a file behind a URL; `traffic` counts the body bytes that came, `requests` the requests.

    Raises:
        RangesRefused: the server answers a range request with the whole file.
        FetchError: refused or unreachable.
    """

    def __init__(self, session: Session, url: str) -> None:
        self._session = session
        self._url = url
        self._guard = threading.Lock()
        self.traffic = 0
        self.requests = 0
        self.size = self._learn_size()

    @property
    def shown(self) -> str:
        """Return the URL without credentials."""
        return masked(self._url)

    def _learn_size(self) -> int:
        answer, _ = self._ask(0, 1)
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if not total.isdigit():
            raise RangesRefused(f"{self.shown} does not say how long the file is")
        return int(total)

    def read_range(self, start: int, length: int) -> bytes:
        """Return exactly `length` bytes from `start` on."""
        return self._ask(start, length)[1] if length else b""

    def _ask(self, start: int, length: int) -> tuple[httpx2.Response, bytes]:
        headers = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        trouble = ""
        for attempt in range(self._session.retries + 1):
            if attempt:
                self._session.sleep(BACKOFF * 2**attempt)
            try:
                with self._session.stream("GET", self._url, headers=headers) as answer:
                    if answer.status_code == 200:
                        raise RangesRefused(f"{self.shown} is served whole only")
                    data = b"".join(answer.iter_raw()) if answer.status_code == 206 else b""
            except (httpx2.TransportError, httpx2.TooManyRedirects) as error:
                trouble = plain(error)
                if "CERTIFICATE" in trouble:
                    break
                continue
            with self._guard:
                self.traffic += len(data)
                self.requests += 1
            if answer.status_code == 206 and len(data) == length:
                return answer, data
            trouble = f"answered {answer.status_code} {answer.reason_phrase} with {len(data)} of {length} bytes"
            if answer.status_code != 206 and answer.status_code not in TRANSIENT:
                break
        raise FetchError(f"{self.shown} could not be read in part", why=trouble, do=advice(trouble))
