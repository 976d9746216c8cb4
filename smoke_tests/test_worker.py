"""The case of a worker that is killed: the server has to notice, say so, and end."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from smoke_tests.servers import POLL, LimitError, SetupError, TrialError, alive
from smoke_tests.steps import pending
from smoke_tests.trial import Running

LONG = 1900
"""Tokens of the answer that is under way when the worker is killed."""

KINDS = ("Worker", "EngineCore")
"""Words in the command of a process without which nothing can be computed; the first that is there is killed."""


@pytest.mark.case("worker-kill")
def test_worker_kill(running: Running) -> None:
    """A killed worker is noticed: the open request gets an error, /health says no, and nothing runs on.

    The exit code is noted and not judged: releases end with 0 after the death of their engine.
    """
    server, limits = running.server, running.plan.limits
    if not server.ours:
        raise SetupError("a server given by --url is not ours to hurt")
    before = server.census()
    victim = victim_of(before)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(running.client.complete, running.prompt(), LONG)
        wait_running(running, request)
        killed = time.monotonic()
        kill_worker(victim)
        running.measured["killed"] = before[victim]
        running.down = f"a worker was killed: {before[victim]}"
        said = how_it_ended(request)
        running.measured.update(request_ended_after_s=round(time.monotonic() - killed, 2), request_ended=said)
    until = time.monotonic() + limits.end
    health = health_of(running)
    while health == httpx.codes.OK:
        if time.monotonic() > until:
            raise TrialError(f"/health still answers 200 {limits.end:.0f} s after {before[victim]!r} was killed")
        time.sleep(POLL)
        health = health_of(running)
    running.measured.update(noticed_after_s=round(time.monotonic() - killed, 2), health=health)
    code = server.wait_end(limits.end)
    running.measured.update(exit_code=code, ended_after_s=round(time.monotonic() - killed, 2))
    if left := alive(list(before)):
        raise TrialError(f"{len(left)} of {len(before)} processes still run after the server's end")


def victim_of(census: dict[int, str]) -> int:
    """Return the process that is to be killed."""
    for kind in KINDS:
        if found := [pid for pid, command in census.items() if kind in command]:
            return max(found)
    raise SetupError(f"the server has no process named after {' or '.join(KINDS)}: {', '.join(census.values())}")


def kill_worker(pid: int) -> None:
    """Kill a process as the kernel does when memory is short."""
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        raise SetupError(f"process {pid} belongs to somebody else: run as root to kill a container's worker") from None


def wait_running(running: Running, request: Future[dict[str, Any]]) -> None:
    """Wait until a request is computed."""
    until = time.monotonic() + running.plan.limits.request
    while not pending(running.client):
        if request.done() or time.monotonic() > until:
            raise SetupError("the request was never seen to run")


def how_it_ended(request: Future[dict[str, Any]]) -> str:
    """Return the error with which the open request ended; it may neither hang nor be answered."""
    try:
        choice = request.result()
    except LimitError as error:
        raise LimitError(f"a worker was killed, and the open request hangs: {error}", error.phase) from None
    except TrialError as error:
        return str(error)
    raise TrialError(f"a worker was killed, and the open request was answered: {choice['text'][:40]!r}")


def health_of(running: Running) -> int:
    """Return the status of /health; 0 when nobody answers."""
    try:
        return httpx.get(f"{running.server.url}/health", timeout=POLL * 10, trust_env=False).status_code
    except httpx.HTTPError:
        return 0
