"""Cases of clients that misbehave: they break off, send rubbish or ask what cannot be; the server goes on answering."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice

import httpx
import pytest

from smoke_tests.bad_requests import Bad, bad_requests, worst_requests
from smoke_tests.servers import SetupError, TrialError
from smoke_tests.steps import look, pending
from smoke_tests.test_golden import SHORT, judge, one_by_one
from smoke_tests.trial import Running

REQUESTS = 1000
AT_ONCE = 8

CLIENTS = 8
"""Clients of each kind that break off."""

LONG = 1900
"""Tokens that they ask for."""

SETTLE = 20.0
"""Seconds within which the engine has to let go of what nobody waits for any more."""

RUBBISH = bytes(range(256)) * 4


def wait_idle(running: Running) -> float:
    """Wait until the engine has no request left; returns the seconds."""
    begun = time.monotonic()
    while count := pending(running.client):
        if time.monotonic() - begun > SETTLE:
            raise TrialError(f"{count} requests still run {SETTLE:.0f} s after their clients have gone")
        time.sleep(0.05)
    return time.monotonic() - begun


@pytest.mark.golden
@pytest.mark.case("bad-requests")
def test_bad_requests(running: Running) -> None:
    """1,000 requests that are wrong in many ways are refused by a status of 4xx, and good ones answered after them."""
    kinds = bad_requests(running.client.model, running.prompt())
    asked = list(islice(cycle(kinds), REQUESTS))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        statuses = list(pool.map(lambda bad: status_of(running, bad), asked))
    wrong = [f"{bad.name}: HTTP {code}" for bad, code in zip(asked, statuses, strict=True) if not 400 <= code < 500]
    running.measured.update(requests=REQUESTS, kinds=len(kinds))
    if wrong:
        names = ", ".join(dict.fromkeys(wrong))
        raise TrialError(f"{len(wrong)} of {REQUESTS} bad requests were not refused by a status of 4xx: {names}")
    wait_idle(running)
    judge(running, one_by_one(running, SHORT))


def status_of(running: Running, bad: Bad) -> int:
    """Return the status with which a request is answered."""
    return running.client.request(bad.method, bad.path, bad.content, bad.headers).status_code


@pytest.mark.golden
@pytest.mark.case("worst-list", "worst-token", "worst-choice")
def test_worst_request(running: Running, case: str) -> None:
    """A single bad request that some releases do not survive: a list, a negative token, a choice with a line break.

    It has to be refused or answered; and the server has to answer the next one.
    """
    code = status_of(running, worst_requests(running.client.model, running.prompt())[case])
    running.measured["status"] = code
    found = one_by_one(running, ("sea",))
    if code >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise TrialError(f"a bad request was answered HTTP {code} and not refused by a status of 4xx")
    judge(running, found)


@pytest.mark.golden
@pytest.mark.case("broken-clients")
def test_broken_clients(running: Running) -> None:
    """Clients break off in the middle of an answer or of a request, read nothing, or send what is no HTTP.

    While some of them still hang there, good requests are answered; when all have gone, so has their work: it is given
    up and not computed to its end.
    """
    before = look(running.client)
    with ExitStack() as stack:
        for leave in (drop_stream, drop_answer, half_a_request, no_http):
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(lambda _, leave=leave: leave(running), range(CLIENTS)))
        for _ in range(CLIENTS):
            stack.enter_context(connect(running))
            sender = stack.enter_context(connect(running))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sender.sendall(long_request(running, stream=True))
        found = one_by_one(running, SHORT)
    seconds = wait_idle(running)
    done = look(running.client).since(before)
    asked = 2 * CLIENTS * LONG
    running.measured.update(clients=6 * CLIENTS, idle_after_s=round(seconds, 2), tokens=done.tokens, asked=asked)
    if done.tokens >= asked:
        raise TrialError(f"{done.tokens} tokens were computed, {asked} of them for clients that had gone")
    found.add(one_by_one(running, SHORT))
    judge(running, found)


def connect(running: Running) -> socket.socket:
    """Return an open connection to the server."""
    url = httpx.URL(running.server.url)
    try:
        return socket.create_connection((url.host, url.port or 80), timeout=running.plan.limits.request)
    except OSError as error:
        raise TrialError(f"the server takes no connection: {error}") from None


def long_request(running: Running, *, stream: bool) -> bytes:
    """Return an HTTP request for a long answer."""
    body = {"model": running.client.model, "prompt": running.prompt(), "max_tokens": LONG, "ignore_eos": True}
    return http_of(json.dumps({**body, "temperature": 0, "stream": stream}).encode())


def http_of(content: bytes, length: int | None = None) -> bytes:
    """Return a POST of a completion; its length may be said wrong."""
    size = len(content) if length is None else length
    head = f"POST /v1/completions HTTP/1.1\r\nHost: smoke\r\nContent-Type: application/json\r\nContent-Length: {size}"
    return f"{head}\r\n\r\n".encode() + content


def drop_stream(running: Running) -> None:
    """Read the first piece of a long stream and hang up."""
    with connect(running) as sock:
        sock.sendall(long_request(running, stream=True))
        received = b""
        while b"data: " not in received:
            if not (piece := receive(sock)):
                raise TrialError(f"a stream ended before its first piece: {received[:200]!r}")
            received += piece


def receive(sock: socket.socket) -> bytes:
    """Return what comes next; nothing when the server hung up."""
    try:
        return sock.recv(4096)
    except TimeoutError:
        raise TrialError("a stream's first piece did not come") from None
    except OSError:
        return b""


def drop_answer(running: Running) -> None:
    """Ask for a long answer and hang up while it is computed."""
    with connect(running) as sock:
        sock.sendall(long_request(running, stream=False))
        until = time.monotonic() + SETTLE
        while not pending(running.client):
            if time.monotonic() > until:
                raise SetupError("the request was never seen to run")


def half_a_request(running: Running) -> None:
    """Say that more comes than does, and hang up."""
    with connect(running) as sock:
        sock.sendall(http_of(b'{"model": "', 4000))


def no_http(running: Running) -> None:
    """Send bytes that are no HTTP and hang up."""
    with connect(running) as sock:
        sock.sendall(RUBBISH)
