"""Cases of one kind of request each; every kind takes other code inside the server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from smoke_tests.client import TOP, choice_of
from smoke_tests.models.tokenizer import pieces, speakable_ids
from smoke_tests.servers import TrialError
from smoke_tests.trial import Running

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is the ship?"}]
TEMPLATED = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere is the ship?<|im_end|>\n<|im_start|>assistant\n"
)
"""What the tiny models' chat template makes of MESSAGES."""

SCHEMA = {
    "type": "object",
    "properties": {"side": {"enum": ["port", "starboard"]}, "open": {"type": "boolean"}},
    "required": ["side", "open"],
    "additionalProperties": False,
}

CHAT = {"messages": MESSAGES, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
REPEATS = 20


@pytest.mark.case("completion")
def test_completion(running: Running) -> None:
    """A plain completion has the length asked for and counts its tokens."""
    prompt = running.prompt()
    body = running.client.post(
        "/v1/completions", {"prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    )
    choice, usage = choice_of(body), body["usage"]
    running.check_text(choice["text"])
    if choice["finish_reason"] != "length":
        raise TrialError(f"the answer is {choice['text']!r}, ended by {choice['finish_reason']!r} and not by length")
    if (usage["prompt_tokens"], usage["completion_tokens"]) != (len(prompt), 16):
        raise TrialError(f"{len(prompt)} + 16 tokens were counted as {usage}")


@pytest.mark.case("chat")
def test_chat(running: Running) -> None:
    """A chat answers what a completion of the templated text answers."""
    choice = choice_of(running.client.post("/v1/chat/completions", CHAT))
    text = choice["message"]["content"]
    running.check_text(text or "")
    if choice["message"]["role"] != "assistant":
        raise TrialError(f"the chat answered {choice['message']}")
    if running.golden is None:
        return
    plain = running.client.complete(TEMPLATED, 16, add_special_tokens=False)
    if plain["text"] != text:
        raise TrialError(f"the chat says {text!r}, a completion of the templated text {plain['text']!r}")


@pytest.mark.case("streaming")
def test_streaming(running: Running) -> None:
    """Streamed pieces add up to the text that comes in one piece, for completions and for chats."""
    body = {"prompt": running.prompt(), "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    usage = {"stream_options": {"include_usage": True}}
    events = list(running.client.stream("/v1/completions", {**body, **usage}))
    text = "".join(choice["text"] for choice in _choices(events))
    counted = [event["usage"]["completion_tokens"] for event in events if event.get("usage")]
    running.measured["pieces"] = len(events)
    if len(events) < 4 or counted[-1:] != [16]:
        raise TrialError(f"16 tokens came in {len(events)} pieces and were counted as {counted[-1:]}")
    if text != (whole := choice_of(running.client.post("/v1/completions", body))["text"]):
        raise TrialError(f"streamed {text!r}, in one piece {whole!r}")
    events = list(running.client.stream("/v1/chat/completions", CHAT))
    text = "".join(choice["delta"].get("content") or "" for choice in _choices(events))
    if text != (whole := choice_of(running.client.post("/v1/chat/completions", CHAT))["message"]["content"]):
        raise TrialError(f"the chat streamed {text!r}, in one piece {whole!r}")


def _choices(events: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return (choice for event in events for choice in event.get("choices") or ())


@pytest.mark.case("logprobs")
def test_logprobs(running: Running) -> None:
    """Log probabilities are finite and sorted, never above zero, and belong to the tokens of the text."""
    answer = running.client.answer(running.prompt(), 8)
    for step, (token, top) in enumerate(zip(answer.tokens, answer.top, strict=True)):
        if len(top) < TOP or token not in top:
            raise TrialError(f"step {step}: {len(top)} log probabilities, chosen token among them: {token in top}")
        if not all(math.isfinite(value) and value <= 0 for value in top.values()):
            raise TrialError(f"step {step}: log probabilities are {sorted(top.values())}")
        if top[token] < max(top.values()):
            raise TrialError(f"step {step}: the greedy token is not the most probable one")
        if sum(map(math.exp, top.values())) > 1.001:
            raise TrialError(f"step {step}: the probabilities add up to more than one")
    choice = choice_of(running.client.post("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}))
    content = (choice.get("logprobs") or {}).get("content") or []
    if len(content) != 16 or not all(math.isfinite(entry["logprob"]) for entry in content):
        raise TrialError(f"the chat holds log probabilities for {len(content)} of 16 tokens, or not finite ones")


@pytest.mark.case("structured-json")
def test_structured_json(running: Running) -> None:
    """An answer that is bound by a JSON schema fits it."""
    shape = {"type": "json_schema", "json_schema": {"name": "hatch", "schema": SCHEMA, "strict": True}}
    body = {"messages": MESSAGES, "max_tokens": 64, "temperature": 0, "response_format": shape}
    choice = choice_of(running.client.post("/v1/chat/completions", {**body, **_no_spaces(running)}))
    _check_hatch(choice["message"]["content"])


@pytest.mark.case("structured-choice")
def test_structured_choice(running: Running) -> None:
    """An answer that is bound to a choice is one of its words."""
    words = ["starboard", "port", "windward"]
    body = {"prompt": running.prompt(), "max_tokens": 16, "temperature": 0, "structured_outputs": {"choice": words}}
    text = choice_of(running.client.post("/v1/completions", body))["text"]
    if text not in words:
        raise TrialError(f"the answer {text!r} is none of {words}")


@pytest.mark.case("structured-regex")
def test_structured_regex(running: Running) -> None:
    """An answer that is bound by a regular expression matches it."""
    pattern = "[a-f]{3}-[0-9]{2}"
    body = {"prompt": running.prompt(), "max_tokens": 16, "temperature": 0, "structured_outputs": {"regex": pattern}}
    text = choice_of(running.client.post("/v1/completions", body))["text"]
    if not re.fullmatch(pattern, text):
        raise TrialError(f"the answer {text!r} does not match {pattern}")


WITH_TOOL = {
    "messages": MESSAGES,
    "max_tokens": 256,
    "temperature": 0,
    "tools": [{"type": "function", "function": {"name": "set_hatch", "parameters": SCHEMA}}],
}


@pytest.mark.case("tools")
def test_tools(running: Running) -> None:
    """A named tool is called with arguments that fit its parameters."""
    body = {
        **WITH_TOOL,
        "tool_choice": {"type": "function", "function": {"name": "set_hatch"}},
    }
    message = choice_of(running.client.post("/v1/chat/completions", {**body, **_no_spaces(running)}))["message"]
    calls = message.get("tool_calls") or []
    if [call["function"]["name"] for call in calls] != ["set_hatch"]:
        raise TrialError(f"the tool was not called once: {calls}")
    _check_hatch(calls[0]["function"]["arguments"])


CALL = '<tool_call>\n{"name": "set_hatch", "arguments": {"side": "port", "open": true}}\n</tool_call>'
"""What a model says that calls the tool by itself, in the form of Hermes."""


@pytest.mark.case("tools-auto")
def test_tools_auto(running: Running) -> None:
    """A tool that the model calls by itself is parsed out of its text (which a grammar dictates), also streamed."""
    body = {
        **WITH_TOOL,
        "tool_choice": "auto",
        "structured_outputs": {"regex": re.escape(CALL)},
    }
    choice = choice_of(running.client.post("/v1/chat/completions", body))
    calls = choice["message"].get("tool_calls") or []
    if [call["function"]["name"] for call in calls] != ["set_hatch"] or choice["finish_reason"] != "tool_calls":
        raise TrialError(f"the text {CALL!r} was answered as {choice}")
    _check_hatch(calls[0]["function"]["arguments"])
    deltas = [choice["delta"] for choice in _choices(running.client.stream("/v1/chat/completions", body))]
    functions = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    if "".join(function.get("name") or "" for function in functions) != "set_hatch":
        raise TrialError(f"streamed, the tool was not called once: {functions}")
    _check_hatch("".join(function.get("arguments") or "" for function in functions))


def _no_spaces(running: Running) -> dict[str, Any]:
    """Return a bias that keeps a random model from writing white space for ever, where a grammar allows it."""
    if running.golden is None:
        return {}
    silent = set(range(len(pieces()[0]))) - speakable_ids()
    return {"logit_bias": {str(token): -100 for token in sorted(silent)[:300]}}


def _check_hatch(text: str | None) -> None:
    try:
        data = json.loads(text or "")
    except ValueError:
        raise TrialError(f"the answer {text!r} is not JSON") from None
    fine = isinstance(data, dict) and set(data) == {"side", "open"}
    if not fine or data["side"] not in ("port", "starboard") or not isinstance(data["open"], bool):
        raise TrialError(f"the answer {data} does not fit the schema")


@pytest.mark.case("repeat")
def test_repeat(running: Running) -> None:
    """The same greedy request gives the same tokens each time."""
    first = running.client.answer(running.prompt(), 16).tokens
    for turn in range(2, REPEATS + 1):
        if (tokens := running.client.answer(running.prompt(), 16).tokens) != first:
            raise TrialError(f"request {turn} of {REPEATS} answered {tokens}, the first {first}")
