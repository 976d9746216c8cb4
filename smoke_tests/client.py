"""Requests to an OpenAI-compatible server, each with a limit, and what their answers hold."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from smoke_tests.evidence import Ledger
from smoke_tests.servers import LimitError, TrialError

TOP = 5
"""Log probabilities that are asked for a step."""

GREEDY = {"temperature": 0, "ignore_eos": True}
WITH_IDS = {"logprobs": TOP, "return_tokens_as_token_ids": True}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered completion: token ids, and log probabilities by token id, per step."""

    text: str
    tokens: list[int]
    top: list[dict[int, float]]
    finish: str


class Client:
    """Speaks HTTP to one server; proxies of the environment are not used."""

    def __init__(self, url: str, model: str, limit: float) -> None:
        self.model = model
        self.ledger = Ledger()
        self._limit = limit
        limits = httpx.Limits(max_connections=128, max_keepalive_connections=0)
        self._tls = ssl.create_default_context()
        self._http = httpx.Client(base_url=url, timeout=limit, limits=limits, trust_env=False, verify=self._tls)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def get(self, path: str) -> httpx.Response:
        """Return the answer to a GET, whatever its status."""
        with self.ledger.entry("GET", path), http_errors(path, self._limit):
            return self._http.get(path)

    def request(self, method: str, path: str, content: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Return the answer to a request that is sent as it is, whatever its status.

        It has a connection of its own: a server may hang up on what is wrong, and another thread's request must not
        meet that.
        """
        with self.ledger.entry(method, path), http_errors(path, self._limit):
            alone = httpx.Client(base_url=self._http.base_url, timeout=self._limit, trust_env=False, verify=self._tls)
            with alone:
                return alone.request(method, path, content=content, headers=headers)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON answer to a POST; raises TrialError unless the status is 200."""
        whole = {"model": self.model, **body}
        with self.ledger.entry("POST", path, whole), http_errors(path, self._limit):
            response = self._http.post(path, json=whole)
        if response.status_code != httpx.codes.OK:
            raise TrialError(f"{path} answered HTTP {response.status_code}: {message_of(response.text)}")
        try:
            found = dict(response.json())
        except ValueError:
            raise TrialError(f"{path} answered 200 with something that is not JSON: {response.text[:200]!r}") from None
        if found.get("error"):
            raise TrialError(f"{path} answered HTTP 200 with an error: {message_of(response.text)}")
        return found

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed answer up to its end mark."""
        whole = {"model": self.model, "stream": True, **body}
        until = time.monotonic() + self._limit
        with (
            self.ledger.entry("POST", path, whole),
            http_errors(path, self._limit),
            self._http.stream("POST", path, json=whole) as response,
        ):
            if response.status_code != httpx.codes.OK:
                text = response.read().decode(errors="replace")
                raise TrialError(f"{path} (streamed) answered HTTP {response.status_code}: {message_of(text)}")
            for line in response.iter_lines():
                if time.monotonic() > until:
                    raise LimitError(f"{path} (streamed) did not end within {self._limit:.0f} s", "request")
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    return
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise TrialError(f"{path} broke off: {message_of(line.removeprefix('data: '))}")
                yield event
        raise TrialError(f"{path} (streamed) ended without its end mark")

    def complete(self, prompt: str | Sequence[int], count: int, **more: Any) -> dict[str, Any]:
        """Return the one choice of a greedy completion of exactly `count` tokens."""
        body = {"prompt": prompt, "max_tokens": count, **GREEDY, **more}
        return choice_of(self.post("/v1/completions", body))

    def answer(self, prompt: Sequence[int], count: int) -> Answer:
        """Return a greedy completion with token ids and log probabilities."""
        return answer_of([self.complete(prompt, count, **WITH_IDS)])

    def list_answers(self, prompts: Sequence[Sequence[int]], count: int) -> list[Answer]:
        """Return the answers to several prompts of one request, so that they reach the engine together."""
        body = {"prompt": [list(prompt) for prompt in prompts], "max_tokens": count, **GREEDY, **WITH_IDS}
        choices = sorted(self.post("/v1/completions", body).get("choices") or (), key=lambda choice: choice["index"])
        if [choice["index"] for choice in choices] != list(range(len(prompts))):
            raise TrialError(f"{len(choices)} choices were answered to {len(prompts)} prompts")
        return [answer_of([choice]) for choice in choices]

    def pieces(self, prompt: Sequence[int], count: int) -> Iterator[dict[str, Any]]:
        """Yield the streamed pieces of a greedy completion with token ids and log probabilities."""
        body = {"prompt": list(prompt), "max_tokens": count, **GREEDY, **WITH_IDS}
        for event in self.stream("/v1/completions", body):
            yield from event.get("choices") or ()

    def answers(self, requests: Sequence[tuple[Sequence[int], int]], at_once: int = 0) -> list[Answer]:
        """Return the answers to many requests that are all under way at the same time, or some of them at a time."""
        pool = ThreadPoolExecutor(max_workers=at_once or len(requests))
        try:
            return list(pool.map(lambda request: self.answer(*request), requests))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class http_errors:
    """Turn what httpx raises into a case's reason."""

    def __init__(self, path: str, limit: float) -> None:
        self._path = path
        self._limit = limit

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise TrialError or LimitError for an error of the connection."""
        if isinstance(error, httpx.TimeoutException):
            raise LimitError(f"{self._path} was not answered within {self._limit:.0f} s", "request") from None
        if isinstance(error, httpx.HTTPError):
            raise TrialError(f"{self._path} was not answered: {type(error).__name__}: {error}") from None


def answer_of(pieces: Sequence[Mapping[str, Any]]) -> Answer:
    """Return the answer that one choice holds, in one piece or in many."""
    values = [piece.get("logprobs") or {} for piece in pieces]
    tokens = [token_id(token) for value in values for token in value.get("tokens") or ()]
    top = [step for value in values for step in value.get("top_logprobs") or ()]
    if not tokens or not top:
        raise TrialError("the completion holds no log probabilities although they were asked for")
    return Answer(
        text="".join(piece["text"] for piece in pieces),
        tokens=tokens,
        top=[{token_id(token): value for token, value in step.items()} for step in top],
        finish=str(pieces[-1].get("finish_reason")),
    )


def choice_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the only choice of an answer."""
    choices = body.get("choices") or []
    if len(choices) != 1:
        raise TrialError(f"{len(choices)} choices were answered instead of one")
    return dict(choices[0])


def token_id(token: str) -> int:
    """Return the id in a token written as `token_id:17`."""
    mark, _, number = token.partition(":")
    if mark != "token_id" or not number.isdigit():
        raise TrialError(f"a token is written as {token!r} although its id was asked for")
    return int(number)


def message_of(text: str) -> str:
    """Return the message of an error body, on one line."""
    try:
        data = json.loads(text)
        data = data.get("error", data)
        text = str(data.get("message", data)) if isinstance(data, dict) else str(data)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:300]
