"""What the stand-in for `vllm serve` does for the profile `extended`: workers, kept prefixes, bad clients."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

BLOCK = 128
PACE = 0.002
"""Seconds that a token of a long answer takes."""

LONG = 1000
"""Tokens from which on an answer is long."""

FAULT = set(os.environ.get("FAULT", "").split(","))
COUNTS = {"running": 0, "hits": 0, "drafts": 6 if "never-takes" not in FAULT else 0}
LOCK = threading.Lock()
SEEN: list[list[int]] = []
DEAD, ENDING = threading.Event(), threading.Event()
WORKERS: list[int] = []


def flag(name: str) -> bool:
    return name in sys.argv


def metrics() -> str:
    """Return more lines of /metrics."""
    lines = [
        f'vllm:num_requests_running{{engine="0"}} {COUNTS["running"]}',
        'vllm:num_requests_waiting{engine="0"} 0.0',
    ]
    if flag("--enable-prefix-caching") and "no-cache-metrics" not in FAULT:
        lines.append(f'vllm:prefix_cache_hits_total{{engine="0"}} {COUNTS["hits"]}')
    if flag("--speculative-config"):
        lines.append('vllm:spec_decode_num_drafts_total{engine="0"} 9.0')
        lines.append(f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {COUNTS["drafts"]}')
    return "\n".join([*lines, ""])


def common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def kept(prompt: list[int]) -> int:
    """Return how many tokens of a prompt come from the cache, and keep it."""
    if not flag("--enable-prefix-caching") or "never-keeps" in FAULT:
        return 0
    with LOCK:
        most = max((common(prompt, old) for old in SEEN), default=0)
        SEEN.append(prompt)
        hits = min(most, len(prompt) - 1) // BLOCK * BLOCK
        COUNTS["hits"] += hits
    return hits


def shift(prompt: list[int], company: int, hits: int) -> float:
    """Return how far the log probabilities of an answer are off by a fault of this profile."""
    ways = {
        "wrong-warm": hits > 0,
        "wrong-chunked": len(prompt) > 512 and flag("--enable-prefix-caching"),
        "wrong-parallel": flag("--tensor-parallel-size"),
        "wrong-layers": flag("--pipeline-parallel-size"),
        "wrong-guess": flag("--speculative-config"),
    }
    if "wavers" in FAULT and company > 1:
        return 0.001
    return 0.9 if any(ways.get(fault) for fault in FAULT) else 0.0


def spoil(tokens: list[str], call: int) -> list[str]:
    """Return an answer's tokens as some faults of load make them."""
    if call > 20 and call % 50 == 0:
        if "exclaims" in FAULT:
            return ["token_id:0"] * len(tokens)
        if "loops" in FAULT:
            return [*tokens[:-16], *["token_id:40", "token_id:41"] * 8]
    return tokens


def bad_contents(name: str, prompt: list[int], golden: Path) -> set[bytes]:
    """Return the bodies that a real server refuses."""
    sys.path.insert(0, str(golden.parents[2]))
    from smoke_tests.bad_requests import bad_requests, worst_requests

    kinds = [*bad_requests(name, prompt), *worst_requests(name, prompt).values()]
    fine = next(bad.content for bad in kinds if bad.method == "DELETE")
    return {bad.content for bad in kinds} - {fine}


def hung_up(connection: socket.socket) -> bool:
    """Tell whether a client has closed its connection."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def long_answer(handler: Any, body: dict[str, Any], engine: Any) -> bool:
    """Compute a long answer until its end, its client's or the worker's; returns whether it came to its end."""
    with LOCK:
        COUNTS["running"] += 1
    done = 0
    try:
        if body.get("stream"):
            handler.send_response(200)
            handler.send_header("content-type", "text/event-stream")
            handler.send_header("connection", "close")
            handler.end_headers()
            handler.close_connection = True
        while done < body["max_tokens"] and not DEAD.is_set() and not hung_up(handler.connection):
            if body.get("stream"):
                event = {"choices": [{"text": "a", "index": 0}]}
                handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                handler.wfile.flush()
            done += 1
            time.sleep(PACE)
    except OSError:
        pass
    finally:
        with engine.lock:
            engine.tokens += body["max_tokens"] if "computes-on" in FAULT else done
        with LOCK:
            COUNTS["running"] -= "never-lets-go" not in FAULT
    return done == body["max_tokens"]


def unwell() -> bool:
    return DEAD.is_set() and "blind" not in FAULT


def start_workers() -> None:
    """Start processes that are named as vLLM names its own, and watch them."""
    names = ["VLLM::EngineCore"]
    if flag("--tensor-parallel-size") or flag("--pipeline-parallel-size"):
        count = 1 if "one-worker" in FAULT else 2
        names += [f"VLLM::Worker_{number}" for number in range(count)]
    for name in names:
        pid = os.fork()
        if pid == 0:
            wait = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9); time.sleep(3600)"
            os.execv(sys.executable, [name, "-c", wait])
        WORKERS.append(pid)
    threading.Thread(target=watch, daemon=True).start()


def end(code: int) -> None:
    """End the workers, and then this process."""
    ENDING.set()
    for pid in WORKERS:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(code)


def watch() -> None:
    """Notice the death of a worker, unless the fault is that nobody does."""
    with suppress(ChildProcessError):  # the end may take the last one while this waits
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    if ENDING.is_set() or "notices-nothing" in FAULT:
        return
    DEAD.set()
    sys.stdout.write(
        "(APIServer pid=1) ERROR 11-30 22:10:58 [x.py:1] EngineDeadError: EngineCore encountered an issue.\n"
    )
    sys.stdout.flush()
    time.sleep(0.5)
    if not {"lives-on", "blind"} & FAULT:
        os.kill(os.getpid(), signal.SIGTERM)
