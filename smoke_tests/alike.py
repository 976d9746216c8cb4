"""What the cases of the profile `extended` ask, and how they tell that answers are alike or degenerate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smoke_tests.client import Answer
from smoke_tests.models.prompts import CHUNK, stream_ids

REACH = (3, 64, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 1500, 1900)
"""Tokens of prompts around the edges of chunks, up to nearly all of the context."""

STEM = 1500
BRANCHES = (100, 500, CHUNK, 2 * CHUNK, 2 * CHUNK + 16, STEM)
"""Tokens that a prompt has in common with the stem; another tail follows."""

TAIL = 40

RUN = 8
"""Times that the first token of the vocabulary comes in a row where not-a-number logits choose it (`!` in most)."""

LOOP, PERIOD = 16, 4
"""Tokens at an answer's end that repeat a few tokens for ever, and how many tokens these are at most."""

Entry = dict[str, Any]


def reach_prompts() -> dict[str, list[int]]:
    """Return prompts of many lengths; no two of them begin alike."""
    return {f"reach-{count}": stream_ids(f"reach-{count}", count) for count in REACH}


def prefix_prompts() -> dict[str, list[int]]:
    """Return a prompt, and others that begin as it does."""
    stem = stream_ids("stem", STEM)
    return {"stem": stem} | {f"branch-{k}": stem[:k] + stream_ids(f"tail-{k}", TAIL) for k in BRANCHES}


def as_entry(ids: Sequence[int], answer: Answer) -> Entry:
    """Return an answer in the form of a golden one, so that others are compared with it."""
    top = [sorted(step.items(), key=lambda item: -item[1]) for step in answer.top]
    margin = [step[0][1] - step[1][1] for step in top]
    return {"ids": list(ids), "tokens": answer.tokens, "margin": margin, "top": top}


def run_of(tokens: Sequence[int], token: int) -> int:
    """Return how often a token comes in a row, at most."""
    longest = now = 0
    for found in tokens:
        now = now + 1 if found == token else 0
        longest = max(longest, now)
    return longest


def period_of(tokens: Sequence[int]) -> int:
    """Return the period in which an answer's end repeats itself; 0 when it does not."""
    end = list(tokens[-LOOP:])
    if len(end) < LOOP:
        return 0
    return next((period for period in range(1, PERIOD + 1) if end[period:] == end[:-period]), 0)


def degenerate(tokens: Sequence[int], alone: Sequence[int]) -> str:
    """Return what is degenerate in an answer, empty when nothing is; a tiny model may repeat itself also when alone."""
    if (count := run_of(tokens, 0)) >= RUN:
        return f"the first token of the vocabulary {count} times in a row"
    period = period_of(tokens)
    if period and not period_of(alone):
        return f"it ends with the same {period} tokens over and over: {list(tokens[-period:])}"
    return ""


def most_apart(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the largest difference of a log probability that both hold."""
    return max((abs(value - other[token]) for token, value in one.items() if token in other), default=0.0)
