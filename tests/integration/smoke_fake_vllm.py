#!/usr/bin/env python3
"""A stand-in for `vllm serve` that answers from the golden data, and can go wrong in chosen ways.

FAULT (environment) names the way: see the table at the end of `Handler.do_POST` and in `main`.
It exists to see every check of the smoke suite red; what it says of vLLM is nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULT = os.environ.get("FAULT", "")
NAME = sys.argv[sys.argv.index("--served-model-name") + 1]
DTYPE = sys.argv[sys.argv.index("--dtype") + 1]
GOLDEN = json.loads((Path(os.environ["GOLDEN"]) / f"{NAME.removeprefix('seatrial-')}.json").read_text())
BY_IDS = {tuple(entry["ids"]): entry for entry in GOLDEN["answers"].values()}
CALLS = {"n": 0}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def logprobs(entry: dict[str, Any], count: int) -> dict[str, Any]:
    shift = 0.9 if FAULT == "wrong-logits" else 0.0
    steps = [entry["top"][at % len(entry["top"])] for at in range(count)]
    value = float("nan") if FAULT == "nan" else None
    return {
        "tokens": [f"token_id:{step[0][0]}" for step in steps],
        "top_logprobs": [
            {f"token_id:{token}": number - shift if value is None else value for token, number in step}
            for step in steps
        ],
    }


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

    def do_GET(self) -> None:
        answers = {
            "/health": (503, {}) if FAULT == "never-ready" else (200, {}),
            "/version": (200, {"version": "0.9.9" if FAULT == "stale" else "0.28.0"}),
            "/v1/models": (200, {"data": [{"id": NAME}]}),
        }
        self.send(*answers.get(self.path, (404, {})))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        CALLS["n"] += 1
        if FAULT == "hang":
            time.sleep(3600)
        if FAULT == "dies":
            say("(Worker pid=1) ERROR 11-30 22:10:58 [x.py:1] RuntimeError: initial_state dtype mismatch")
            os._exit(9)
        text = "abcdefghijklmnop"[: body["max_tokens"]]
        count = body["max_tokens"]
        text = "\0" * count if FAULT == "nan" else text
        chat = self.path.endswith("chat/completions")
        if FAULT == "unsteady" and CALLS["n"] > 12:
            text = text[::-1]
        if "response_format" in body or "tools" in body:
            text = '{"side": "port", "open": true}' if FAULT != "no-grammar" else "port!"
        text = body["structured_outputs"].get("choice", ["abc-12"])[-1] if "structured_outputs" in body else text
        usage = {"prompt_tokens": len(body.get("prompt", "")), "completion_tokens": count}
        if body.get("stream"):
            pieces = list(text)[: -1 if FAULT == "short-stream" else None]
            part = (lambda piece: {"delta": {"content": piece}}) if chat else (lambda piece: {"text": piece})
            events = [{"choices": [part(piece)]} for piece in pieces] + [{"choices": [], "usage": usage}]
            lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            self.send(200, lines.encode(), "text/event-stream")
            return
        choice: dict[str, Any] = {"finish_reason": "length", "text": text}
        if chat:
            call = {"function": {"name": "set_hatch", "arguments": text}}
            message = {"role": "assistant", "content": text, "tool_calls": [call] if "tools" in body else []}
            choice = {"message": message, "logprobs": {"content": [{"logprob": -1.0}] * count}}
        elif body.get("logprobs") is not None:
            wanted = body["prompt"] if isinstance(body["prompt"], list) else []
            choice["logprobs"] = logprobs(BY_IDS.get(tuple(wanted), next(iter(BY_IDS.values()))), count)
            if FAULT == "unsteady" and CALLS["n"] % 5 == 0:
                choice["logprobs"]["tokens"][0] = "token_id:1"
        if "prompt_logprobs" in body:
            scored = GOLDEN["scored"]
            choice["prompt_logprobs"] = [
                {str(token): {"logprob": value}} if at else None
                for at, (token, value) in enumerate(zip(scored["ids"], scored["logprobs"], strict=True))
            ]
        self.send(200, {"choices": [choice], "usage": usage})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main() -> None:
    say("(APIServer pid=1) INFO 11-30 22:02:58 [fake.py:1] starting")
    if DTYPE == "float16" and FAULT != "takes-anything":
        reason = "Value error, --dtype float16 cannot be used" + ("" if FAULT == "gruff" else ": use --dtype bfloat16")
        sys.exit(f"(APIServer pid=1)   {reason}")
    if FAULT == "traceback":
        say("Traceback (most recent call last):\nValueError: swallowed")
    server = Server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    if FAULT == "leaves-a-child" and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    code = 3 if FAULT == "bad-exit" else 0
    if FAULT == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
