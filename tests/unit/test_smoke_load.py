"""What the cases of load and of bad requests judge by."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from smoke_tests.alike import (
    BRANCHES,
    STEM,
    as_entry,
    degenerate,
    most_apart,
    period_of,
    prefix_prompts,
    reach_prompts,
    run_of,
)
from smoke_tests.bad_requests import bad_requests, worst_requests
from smoke_tests.client import Answer
from smoke_tests.compare import compare_answer
from smoke_tests.models.prompts import NEEDLE_AT, NEEDLE_SIZE, NEEDLES, needle_prompts

FINE = list(range(100, 132))


@pytest.mark.parametrize(("tokens", "count"), [([], 0), ([0], 1), ([1, 0, 0, 2, 0], 2), ([1, 2], 0), ([0] * 9, 9)])
def test_the_longest_run_of_a_token(tokens: list[int], count: int) -> None:
    assert run_of(tokens, 0) == count


@pytest.mark.parametrize(
    ("tokens", "period"),
    [(FINE, 0), ([*FINE, *[7] * 16], 1), ([*FINE, *[7, 8, 9, 10] * 4], 4), ([*FINE, *[7] * 15], 0), ([7] * 15, 0)],
)
def test_an_end_that_repeats_itself(tokens: list[int], period: int) -> None:
    assert period_of(tokens) == period


def test_what_is_degenerate() -> None:
    assert not degenerate(FINE, FINE)
    assert "8 times in a row" in degenerate([*FINE, *[0] * 8, 1], FINE)
    assert "over and over: [7, 8]" in degenerate([*FINE, *[7, 8] * 8], FINE)
    assert not degenerate([7, 8] * 16, [7, 8] * 16)


def test_bad_requests_are_wrong_in_ways_of_their_own() -> None:
    kinds = bad_requests("m", FINE)
    assert len({bad.name for bad in kinds}) == len(kinds) >= 30
    assert len({(bad.method, bad.path, bad.content, str(bad.headers)) for bad in kinds}) == len(kinds)
    worst = worst_requests("m", FINE)
    assert json.loads(worst["worst-token"].content)["prompt"] == [-1]
    assert "\n" in json.loads(worst["worst-choice"].content)["structured_outputs"]["choice"][0]


def test_prompts_begin_alike_only_where_they_shall() -> None:
    assert len({tuple(ids[:3]) for ids in reach_prompts().values()}) == len(reach_prompts())
    found = prefix_prompts()
    for shared in BRANCHES:
        ids = found[f"branch-{shared}"]
        assert ids[:shared] == found["stem"][:shared]
        assert shared == STEM or ids[shared] != found["stem"][shared]


def test_an_answer_is_compared_like_a_golden_one() -> None:
    answer = Answer("", [5, 6], [{4: -2.0, 5: -0.5}, {6: -0.1, 9: -4.0}], "length")
    entry = as_entry([1], answer)
    assert entry["margin"] == [1.5, 3.9]
    assert not compare_answer("a", entry, answer.tokens, answer.top, 0.01).faults
    other = compare_answer("a", entry, [5, 9], [answer.top[0], {6: -4.0, 9: -0.1}], 0.01)
    assert "log probability of token 6 is -4.000" in other.faults[0]


def test_the_needle_is_all_that_differs_and_moves_the_reference_by_more_than_rounding_does() -> None:
    one, other = (needle_prompts()[name].ids for name in NEEDLES)
    places = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    assert NEEDLE_AT <= min(places) <= max(places) < NEEDLE_AT + NEEDLE_SIZE
    data = json.loads((Path(__file__).parents[2] / "smoke_tests" / "models" / "golden" / "qwen3.json").read_text())
    assert [data["answers"][name]["ids"] for name in NEEDLES] == [one, other]
    tops = [dict(data["answers"][name]["top"][0]) for name in NEEDLES]
    assert most_apart(*tops) > data["tolerance"]["bfloat16"]["top"]
    assert most_apart({1: -1.0, 2: -2.0}, {2: -2.5, 3: 0.0}) == 0.5
    assert most_apart({1: -1.0}, {2: -1.0}) == 0.0
