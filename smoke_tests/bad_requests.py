"""Requests that a server has to refuse, each with a status of 4xx; every kind is wrong in one way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

CONTEXT = 2048
"""`--max-model-len` of every server."""

JSON = {"content-type": "application/json"}

MESSAGE = {"role": "user", "content": "Where is the ship?"}
TOOL = {"type": "function", "function": {"name": "set_hatch", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True, slots=True)
class Bad:
    """One kind of bad request."""

    name: str
    path: str
    content: bytes
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


def bad_requests(model: str, prompt: Sequence[int]) -> list[Bad]:
    """Return every kind, for a served model and a prompt that alone would be answered."""

    def completion(name: str, **more: Any) -> Bad:
        body = {"model": model, "prompt": list(prompt), "max_tokens": 4, "temperature": 0, **more}
        kept = {key: value for key, value in body.items() if value is not None}
        return Bad(name, COMPLETIONS, json.dumps(kept).encode())

    def chat(name: str, **more: Any) -> Bad:
        body = {"model": model, "messages": [MESSAGE], "max_tokens": 4, "temperature": 0, **more}
        kept = {key: value for key, value in body.items() if value is not None}
        return Bad(name, CHAT, json.dumps(kept).encode())

    fine = completion("fine").content
    return [
        Bad("no body", COMPLETIONS, b""),
        Bad("half a document", COMPLETIONS, fine[: len(fine) // 2]),
        Bad("a null", CHAT, b"null"),
        Bad("bytes that are no text", COMPLETIONS, b"\xff\xfe" + fine),
        Bad("brackets without end", CHAT, b"[" * 20_000),
        Bad("another type of content", COMPLETIONS, fine, headers={"content-type": "text/plain"}),
        Bad("no such path", "/v1/complete", fine),
        Bad("another method", COMPLETIONS, fine, method="DELETE"),
        completion("no prompt", prompt=None),
        completion("a prompt that is an object", prompt={"text": "ship"}),
        completion("tokens past the vocabulary", prompt=[10**6]),
        completion("a prompt longer than the context", prompt=[*prompt] * (1 + CONTEXT // len(prompt))),
        completion("more tokens than the context", max_tokens=100 * CONTEXT),
        completion("fewer than no tokens", max_tokens=-1),
        completion("tokens in words", max_tokens="four"),
        completion("a negative temperature", temperature=-1),
        completion("a temperature in words", temperature="hot"),
        completion("top_p above one", top_p=7),
        completion("no answer at all", n=0),
        completion("too many log probabilities", logprobs=10**6),
        completion("a bias for no token", logit_bias={"ship": 1}),
        completion("no such model", model="nobody"),
        completion("a grammar that is none", structured_outputs={"regex": "[a-"}),
        completion("two grammars", structured_outputs={"regex": "a", "choice": ["a"]}),
        chat("no messages", messages=None),
        chat("messages in words", messages="ship"),
        chat("a message without a role", messages=[{"content": "ship"}]),
        chat("a tool that is not there", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "sink"}}),
        chat("a choice of tools without tools", tool_choice="required"),
        chat("a form that nobody knows", response_format={"type": "poem"}),
        chat("a schema that is none", response_format={"type": "json_schema", "json_schema": {"name": "hatch"}}),
        chat("stream options without a stream", stream_options={"include_usage": True}),
    ]


def worst_requests(model: str, prompt: Sequence[int]) -> dict[str, Bad]:
    """Return, by case, the bad requests that some releases do not survive; each is asked by itself."""
    body = {"model": model, "max_tokens": 4, "temperature": 0}
    choice = {"prompt": list(prompt), "structured_outputs": {"choice": ["port\nstarboard"]}}
    whole = {
        "worst-list": [{"prompt": list(prompt), **body}],
        "worst-token": {"prompt": [-1], **body},
        "worst-choice": {**choice, **body},
    }
    return {case: Bad(case, COMPLETIONS, json.dumps(content).encode()) for case, content in whole.items()}
