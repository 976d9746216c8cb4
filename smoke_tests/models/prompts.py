"""The prompts that golden answers exist for."""

from __future__ import annotations

import hashlib

from smoke_tests.models.tokenizer import pieces

SHORT = {
    "sea": "the wind is on a ship",
    "json": '{"name": "port", "value": 10, "open": false',
    "words": "hello world is the wind",
    "one": "E",
}
"""Short prompts by name; chosen among many for the clear margins of both models' answers."""

ANSWER = 12
"""Tokens that are generated after a short prompt."""

LONG, LONG_ANSWER = 1500, 4
"""Tokens of the long prompt, prefilled in at least three chunks of 512, and of its answer."""

SCORED = 160
"""Tokens of the prompt whose own log probabilities are compared; more than two chunks of a chunked delta rule."""


def stream_ids(seed: str, count: int) -> list[int]:
    """Return token ids drawn evenly from the vocabulary without special tokens."""
    size = len(pieces()[0])
    raw = hashlib.shake_256(seed.encode()).digest(2 * count)
    return [int.from_bytes(raw[at : at + 2], "little") % size for at in range(0, 2 * count, 2)]
