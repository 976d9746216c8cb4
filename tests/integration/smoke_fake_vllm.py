#!/usr/bin/env python3
"""A stand-in for `vllm serve` that answers from the golden data, and can go wrong in chosen ways.

FAULT (environment, words with commas) names the ways; `shift_of` and `Handler` hold most of them.
It exists to see every check of the smoke suite red; what it says of vLLM is nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import smoke_fake_extended as extended

FAULT = set(os.environ.get("FAULT", "").split(","))
NAME = sys.argv[sys.argv.index("--served-model-name") + 1]
DTYPE = sys.argv[sys.argv.index("--dtype") + 1]
GOLDEN = json.loads((Path(os.environ["GOLDEN"]) / f"{NAME.removeprefix('seatrial-')}.json").read_text())
BY_IDS = {tuple(entry["ids"]): entry for entry in GOLDEN["answers"].values()}
if "short-sighted" in FAULT and "needle-b" in GOLDEN["answers"]:
    BY_IDS[tuple(GOLDEN["answers"]["needle-b"]["ids"])] = GOLDEN["answers"]["needle-a"]
CALLS = {"n": 0}
WORKER: list[int] = []
BAD = extended.bad_contents(NAME, GOLDEN["answers"]["sea"]["ids"], Path(os.environ["GOLDEN"]))
BLOCKS = 200
EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Engine:
    """Counts steps as vLLM does; a request that comes while a stream is open shares the stream's steps."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.sizes: list[int] = []
        self.tokens = self.finished = self.streams = 0

    def run(self, prompts: list[list[int]], count: int) -> None:
        """Count a request."""
        with self.lock:
            groups = [[prompt] for prompt in prompts] if "serial" in FAULT else [prompts]
            if not self.streams:
                for group in groups:
                    self.sizes += [sum(map(len, group)) + len(group), *[len(group)] * (count - 1)]
            self.tokens += sum(map(len, prompts)) + count * len(prompts)
            self.finished += len(prompts)
            self.lock.notify_all()

    def metrics(self) -> str:
        """Return the text of /metrics."""
        name = "vllm:iteration_tokens_total"
        with self.lock:
            lines = [f'{name}_bucket{{le="{edge}"}} {sum(size <= edge for size in self.sizes)}' for edge in EDGES]
            lines += [f'{name}_bucket{{le="+Inf"}} {len(self.sizes)}', f'{name}_count{{engine="0"}} {len(self.sizes)}']
            lines += [f'{name}_sum{{engine="0"}} {self.tokens}', 'vllm:num_preemptions_total{engine="0"} 0.0']
            lines += [f'vllm:request_success_total{{finished_reason="length"}} {self.finished}']
            return "\n".join([*lines, f'vllm:cache_config_info{{num_gpu_blocks="{BLOCKS}"}} 1.0', extended.metrics()])


ENGINE = Engine()


def shift_of(ids: list[int], company: int) -> float:
    """Return how far the log probabilities of an answer are off.

    Args:
        company: prompts of the request.
    """
    ways = {
        "wrong-logits": True,
        "wrong-alone": company == 1 and not ENGINE.streams,
        "wrong-small": 1 < company <= 64 and not ENGINE.streams,
        "wrong-large": company > 64,
        "wrong-mixed": ENGINE.streams > 0,
        "left-over": ENGINE.finished > BLOCKS and len(ids) == 1,
        f"wrong-length-{len(ids)}": company == 1,
    }
    return 0.9 if any(ways.get(fault) for fault in FAULT) else 0.0


def logprobs(entry: dict[str, Any], count: int, shift: float) -> dict[str, Any]:
    steps = [entry["top"][at % len(entry["top"])] for at in range(count)]
    chosen = [f"token_id:{step[0][0]}" for step in steps]
    value = float("nan") if "nan" in FAULT else None
    return {
        "tokens": extended.spoil(chosen, CALLS["n"]),
        "top_logprobs": [
            {f"token_id:{token}": number - shift if value is None else value for token, number in step}
            for step in steps
        ],
    }


def text_of(body: dict[str, Any]) -> str:
    text = "abcdefghijklmnop"[: body["max_tokens"]].ljust(body["max_tokens"], "q")
    text = "\0" * body["max_tokens"] if "nan" in FAULT else text
    if "unsteady" in FAULT and CALLS["n"] > 12:
        text = text[::-1]
    if "response_format" in body or "tools" in body:
        return '{"side": "port", "open": true}' if "no-grammar" not in FAULT else "port!"
    return body["structured_outputs"].get("choice", ["abc-12"])[-1] if "structured_outputs" in body else text


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send(405, {})

    def do_GET(self) -> None:
        answers = {
            "/health": (503, {}) if "never-ready" in FAULT or extended.unwell() else (200, {}),
            "/version": (200, {"version": "0.9.9" if "stale" in FAULT else "0.28.0"}),
            "/v1/models": (200, {"data": [{"id": NAME}]}),
            "/metrics": (404, {}) if "no-metrics" in FAULT else (200, ENGINE.metrics().encode()),
        }
        self.send(*answers.get(self.path, (404, {})))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        CALLS["n"] += 1
        if self.refused(content):
            return
        body = json.loads(content)
        if self.goes_wrong(body):
            return
        count = body["max_tokens"]
        usage = {"prompt_tokens": len(body.get("prompt", "")), "completion_tokens": count}
        if count >= extended.LONG:
            if not extended.long_answer(self, body, ENGINE) and not body.get("stream"):
                self.send(500, {"error": {"message": "EngineCore encountered an issue."}})
            elif not body.get("stream"):
                self.send(200, {"choices": [{"text": "a" * count}]})
        elif body.get("stream") and body.get("logprobs") is not None:
            self.stream_slowly(body)
        elif body.get("stream"):
            call = {"delta": {"tool_calls": [{"function": {"name": "set_hatch"}}]}}
            first = [{"choices": [call]}] if "tools" in body else []
            events = [*first, *self.pieces(text_of(body)), {"choices": [], "usage": usage}]
            lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            self.send(200, lines.encode(), "text/event-stream")
        else:
            self.send(200, {"choices": self.choices(body), "usage": usage})

    def goes_wrong(self, body: dict[str, Any]) -> bool:
        """Hang, die or lose a worker where the fault is that; tells whether the request was answered."""
        if "hang" in FAULT:
            time.sleep(3600)
        if "crashes" in FAULT:
            say("(Worker pid=1) INFO 11-30 22:10:58 [x.py:1] about to read what is not there")
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(5)
        if "loses-a-worker" in FAULT:
            os.kill(WORKER[0], signal.SIGKILL)
            say("(APIServer pid=1) ERROR 11-30 22:10:58 [x.py:1] EngineDeadError: EngineCore encountered an issue.")
            self.send(500, {"error": {"message": "EngineCore encountered an issue."}})
            return True
        if "endless-stream" in FAULT and body.get("stream"):
            self.stream_for_ever()
        if "dies" in FAULT:
            say("(Worker pid=1) ERROR 11-30 22:10:58 [x.py:1] RuntimeError: initial_state dtype mismatch")
            os._exit(9)
        return False

    def refused(self, content: bytes) -> bool:
        """Refuse what a real server refuses; tells whether an answer was sent, or nobody is there to read one."""
        if len(content) < int(self.headers["content-length"]):
            self.close_connection = True
            return True
        status = 400 if content in BAD or self.headers["content-type"] != "application/json" else 200
        status = 404 if self.path not in ("/v1/completions", "/v1/chat/completions") else status
        if status != 200 and "dies-of-bad" in FAULT:
            say("(EngineCore pid=1) ERROR 11-30 22:10:58 [x.py:1] IndexError: index out of range in self")
            os._exit(9)
        if status != 200:
            self.send(500 if "stumbles" in FAULT else 200 if "takes-bad" in FAULT else status, {})
        return status != 200

    def pieces(self, text: str) -> Iterator[dict[str, Any]]:
        chat = self.path.endswith("chat/completions")
        for piece in list(text)[: -1 if "short-stream" in FAULT else None]:
            if text.startswith("{") and chat:
                yield {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": piece}}]}}]}
                continue
            yield {"choices": [{"delta": {"content": piece}} if chat else {"text": piece}]}

    def choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        count, text = body["max_tokens"], text_of(body)
        if self.path.endswith("chat/completions"):
            call = {"function": {"name": "set_hatch", "arguments": text}}
            message = {"role": "assistant", "content": text, "tool_calls": [call] if "tools" in body else []}
            if body.get("tool_choice") == "auto" and "unparsed" in FAULT:
                message["tool_calls"] = []
            finish = "tool_calls" if "tools" in body else "length"
            return [{"message": message, "finish_reason": finish, "logprobs": {"content": [{"logprob": -1.0}] * count}}]
        given = body["prompt"]
        lists = given if isinstance(given, list) and isinstance(given[0], list) else [given]
        if "serial" in FAULT:
            with ENGINE.lock:
                ENGINE.lock.wait_for(lambda: not ENGINE.streams, 3)
        shifts = [shift_of(prompt, len(lists)) for prompt in lists]
        if isinstance(given, list):
            hits = [extended.kept(prompt) for prompt in lists]
            more = (extended.shift(prompt, len(lists), hit) for prompt, hit in zip(lists, hits, strict=True))
            shifts = [max(pair) for pair in zip(shifts, more, strict=True)]
        if isinstance(given, list):
            ENGINE.run(lists, count)
        turned = lists[1:] + lists[:1] if "swapped" in FAULT else lists
        found = []
        for index, (prompt, shift) in enumerate(zip(turned, shifts, strict=True)):
            choice: dict[str, Any] = {"finish_reason": "length", "text": text, "index": index}
            if body.get("logprobs") is not None:
                choice["logprobs"] = logprobs(BY_IDS.get(tuple(prompt), next(iter(BY_IDS.values()))), count, shift)
                if "unsteady" in FAULT and CALLS["n"] % 5 == 0:
                    choice["logprobs"]["tokens"][0] = "token_id:1"
            if "prompt_logprobs" in body:
                scored = GOLDEN["scored"]
                choice["prompt_logprobs"] = [
                    {str(token): {"logprob": value}} if at else None
                    for at, (token, value) in enumerate(zip(scored["ids"], scored["logprobs"], strict=True))
                ]
            found.append(choice)
        return found

    def stream_for_ever(self) -> None:
        """Send tokens and never an end."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        chat = self.path.endswith("chat/completions")
        event = {"choices": [{"delta": {"content": "a"}} if chat else {"text": "a"}]}
        while True:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            time.sleep(0.05)

    def stream_slowly(self, body: dict[str, Any]) -> None:
        """Send one token at first, and the others when a second request came in meanwhile, or after a second."""
        ids, count = body["prompt"], body["max_tokens"]
        whole = logprobs(BY_IDS[tuple(ids)], count, 0.9 if "wrong-stream" in FAULT else 0.0)
        text = text_of(body) if "other-text" not in FAULT else "z" * count
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        with ENGINE.lock:
            ENGINE.streams += 1
            before = ENGINE.finished
        for at in range(count):
            value = {key: [whole[key][at]] for key in whole}
            event = {"choices": [{"text": text[at], "index": 0, "logprobs": value}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            if at == 0:
                self.wfile.flush()
                with ENGINE.lock:
                    ENGINE.lock.wait_for(lambda: ENGINE.finished > before, 1)
        with ENGINE.lock:
            ENGINE.streams -= 1
        ENGINE.run([ids], count)
        self.wfile.write(b"data: [DONE]\n\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a client that broke off."""


def main() -> None:
    say("(APIServer pid=1) INFO 11-30 22:02:58 [fake.py:1] starting")
    if DTYPE == "float16" and "takes-anything" not in FAULT:
        reason = "Value error, --dtype float16 cannot be used" + ("" if "gruff" in FAULT else ": use --dtype bfloat16")
        sys.exit(f"(APIServer pid=1)   {reason}")
    if "traceback" in FAULT:
        say("Traceback (most recent call last):\nValueError: swallowed")
    server = Server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    if "leaves-a-child" in FAULT and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    if "loses-a-worker" in FAULT:
        WORKER.append(os.fork())
        if WORKER[0] == 0:
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(3600)", "worker"])
    if "WORKERS" in os.environ:
        extended.start_workers()
    code = 3 if "bad-exit" in FAULT else 0
    if "ignores-sigterm" in FAULT:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: extended.end(code))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
