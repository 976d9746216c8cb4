"""A package index as tests want it: honest by default, and broken in one chosen way where a test asks for it.

It only answers; :func:`transport` puts it behind an in-memory transport, :mod:`tests.loopback` behind a real socket.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpx2

HOST = "http://127.0.0.1"


@dataclass
class Answer:
    """What goes over the wire; `cut` ends the connection after the body although more was announced."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    cut: bool = False


@dataclass
class FakeIndex:
    """Files by distribution; the switches below break it."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    host: str = HOST
    ranges: bool = True
    state_length: bool = True
    """Whether answers with a file say how long it is."""
    as_html: bool = False
    state_hashes: bool = True
    state_sizes: bool = True
    lie_about: dict[str, bytes] = field(default_factory=dict)
    """Other bytes that are served under a file's name, while the page states the right hash."""
    cuts: list[int] = field(default_factory=list)
    """For each coming file request, after how many bytes of its body the connection ends; -1: not at all."""
    statuses: dict[str, list[int]] = field(default_factory=dict)
    """Statuses that the next requests whose path holds the key are answered with; the last one stays."""
    redirects: dict[str, str] = field(default_factory=dict)
    password: str = ""
    """When set, requests need basic credentials with it; user `u`."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def add(self, distribution: str, name: str, data: bytes) -> str:
        """Offer a file and return its SHA-256."""
        self.files.setdefault(distribution, {})[name] = data
        return hashlib.sha256(data).hexdigest()

    def asked(self, part: str) -> list[dict[str, str]]:
        """Return the headers of the requests whose path holds `part`."""
        return [headers for path, headers in self.requests if part in path]

    def answer(self, path: str, headers: Mapping[str, str]) -> Answer:
        """Return the answer to a GET."""
        lower = {key.lower(): value for key, value in headers.items()}
        self.requests.append((path, lower))
        if self.password and "dTpz" not in lower.get("authorization", ""):  # the start of base64("u:s...")
            return Answer(401, {"Content-Length": "0"})
        for part, codes in self.statuses.items():
            if part in path and codes:
                code = codes.pop(0) if len(codes) > 1 else codes[0]
                if code != 200:
                    return Answer(code, {"Content-Length": "0"})
        if path in self.redirects:
            return Answer(302, {"Location": self.redirects[path], "Content-Length": "0"})
        if path.startswith("/simple/"):
            return self._page(path.removeprefix("/simple/").strip("/"))
        for files in self.files.values():
            name = path.removeprefix("/files/")
            if path.startswith("/files/") and name in files:
                return self._file(self.lie_about.get(name, files[name]), lower.get("range"))
        return Answer(404, {"Content-Length": "0"})

    def _page(self, distribution: str) -> Answer:
        files = self.files.get(distribution)
        if files is None:
            return Answer(404, {"Content-Length": "0"})
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        if self.as_html:
            marks = {name: f"#sha256={digest}" if self.state_hashes else "" for name, digest in digests.items()}
            body = "".join(f'<a href="/files/{name}{mark}">{name}</a>\n' for name, mark in marks.items())
            return Answer(200, {"Content-Type": "text/html", "Content-Length": str(len(body))}, body.encode())
        entries = []
        for name, data in files.items():
            entry: dict[str, object] = {"filename": name, "url": f"{self.host}/files/{name}", "hashes": {}}
            if self.state_hashes:
                entry["hashes"] = {"sha256": digests[name]}
            if self.state_sizes:
                entry["size"] = len(data)
            entries.append(entry)
        page = json.dumps({"meta": {"api-version": "1.1"}, "name": distribution, "files": entries}).encode()
        kind = "application/vnd." + "pypi" + ".simple.v1+json"
        return Answer(200, {"Content-Type": kind, "Content-Length": str(len(page))}, page)

    def _file(self, data: bytes, wanted: str | None) -> Answer:
        headers = {"Content-Type": "application/octet-stream"}
        status = 200
        total = len(data)
        if wanted is not None and self.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) if last else total - 1, total - 1)
            if start >= total:
                return Answer(416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
            data, status = data[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{end}/{total}"
        if self.state_length:
            headers["Content-Length"] = str(len(data))
        cut = self.cuts.pop(0) if self.cuts else -1
        return Answer(status, headers, data if cut < 0 else data[:cut], cut >= 0)


class _Body(httpx2.SyncByteStream):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._answer.body), 1000):
            yield self._answer.body[start : start + 1000]
        if self._answer.cut:
            raise httpx2.ReadError("connection reset")


def transport(index: FakeIndex) -> httpx2.MockTransport:
    """Put an index behind a transport that opens no socket."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        answer = index.answer(request.url.path, request.headers)
        return httpx2.Response(answer.status, headers=answer.headers, stream=_Body(answer))

    return httpx2.MockTransport(handle)
