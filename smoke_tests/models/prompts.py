"""The prompts that golden answers exist for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

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

LIMIT = 64
"""Tokens of a forward that a Gated DeltaNet layer may take as a small batch: `MAX_DECODE_BSZ` of Intel's downstream."""

CHUNK = 512
"""Tokens of a chunk: `--max-num-batched-tokens` of every server."""

EDGES = {LIMIT: "prompt-64-0", LIMIT + 1: "prompt-65-2", 300: "prompt-300-3"}
"""Tokens and seeds of prompts that are prefilled in one piece: the largest small batch, one more, and many more."""

CHUNKED = {CHUNK + 1: "prompt-513-1", CHUNK + LIMIT: "prompt-576-3", CHUNK + LIMIT + 1: "prompt-577-2"}
"""The same of prompts whose second chunk starts from a state: of one token, the largest small batch, one more."""

EDGE_ANSWER = 6
"""Tokens that are generated after them."""

WATCH, WATCH_SEED, WATCH_ANSWER = 12, "watch-43", 64
"""Tokens of the prompt that is decoded while others are prefilled, and of its answer; clear margins at first."""

CREW_SEEDS = (
    2, 3, 5, 7, 10, 12, 13, 17, 18, 19, 20, 23, 24, 25, 26, 27, 30, 31, 35, 36, 41, 43,
    45, 47, 48, 49, 51, 52, 54, 56, 58, 60, 62, 64, 66, 68, 70, 73, 77, 88, 90, 91, 92, 93,
    94, 96, 98, 99, 100, 105, 106, 108, 109, 111, 112, 115, 123, 127, 129, 130, 133, 134, 135, 136, 138,
)  # fmt: skip
"""Seeds of as many prompts as are one more than a small batch: no two of them can change places unseen. Like all others
they were chosen among many, here as those for which the reference's own rounding moves little."""

CREW_ANSWER = 12


NEEDLE, NEEDLE_AT, NEEDLE_SIZE, NEEDLE_ANSWER = 2000, 30, 12, 4
"""Tokens of the longest prompt, the place of a few that differ far from its end, their number, and the answer's."""

NEEDLES = {"needle-a": "hidden-0", "needle-b": "hidden-8"}
"""Seeds of what is hidden there; chosen among many as the pair that moves the answer most."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: token ids, and how many tokens to generate."""

    ids: list[int]
    answer: int


def gdn_prompts() -> dict[str, Prompt]:
    """Return the prompts by which the branches of a Gated DeltaNet layer are told apart."""
    found = {
        f"prompt-{count}": Prompt(stream_ids(seed, count), EDGE_ANSWER) for count, seed in {**EDGES, **CHUNKED}.items()
    }
    found["watch"] = Prompt(stream_ids(WATCH_SEED, WATCH), WATCH_ANSWER)
    for number, seed in enumerate(CREW_SEEDS):
        ids = stream_ids(f"crew-{seed}", 2 + 7 * seed % 39)
        found[crew(number)] = Prompt(ids, CREW_ANSWER)
    return found


def needle_prompts() -> dict[str, Prompt]:
    """Return two long prompts that differ in a few tokens near their beginning."""
    hay = stream_ids("needle-0", NEEDLE)
    end = NEEDLE_AT + NEEDLE_SIZE
    return {
        name: Prompt([*hay[:NEEDLE_AT], *stream_ids(seed, NEEDLE_SIZE), *hay[end:]], NEEDLE_ANSWER)
        for name, seed in NEEDLES.items()
    }


def crew(number: int) -> str:
    """Return the name of one of the crew's prompts."""
    return f"crew-{number:02}"


def stream_ids(seed: str, count: int) -> list[int]:
    """Return token ids drawn evenly from the vocabulary without special tokens."""
    size = len(pieces()[0])
    raw = hashlib.shake_256(seed.encode()).digest(2 * count)
    return [int.from_bytes(raw[at : at + 2], "little") % size for at in range(0, 2 * count, 2)]
