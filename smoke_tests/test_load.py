"""Cases of load: many repeated greedy prompts at the same time, none of which may be answered in another way."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

from smoke_tests.alike import as_entry, degenerate
from smoke_tests.compare import Comparison
from smoke_tests.models.prompts import CHUNK, stream_ids
from smoke_tests.servers import TrialError
from smoke_tests.steps import look
from smoke_tests.test_golden import judge, one_by_one
from smoke_tests.test_same import compared
from smoke_tests.trial import Running

REQUESTS = 200
AT_ONCE = 8
LENGTH = 32
LENGTHS = (300, CHUNK + 1, 777, 2 * CHUNK, 1500, 1900, 40)
"""Tokens of the prompts; that of the golden long one comes to them."""


@pytest.mark.golden
@pytest.mark.case("load")
def test_load(running: Running) -> None:
    """200 greedy prompts of several lengths, 8 at a time, are answered as each was alone."""
    ids = {f"load-{count}": stream_ids(f"load-{count}", count) for count in LENGTHS} | {"long": running.prompt("long")}
    found = one_by_one(running, ("long",))
    alone = {name: as_entry(prompt, running.client.answer(prompt, LENGTH)) for name, prompt in ids.items()}
    faults = [
        f"{name} alone: {why}" for name, entry in alone.items() if (why := degenerate(entry["tokens"], entry["tokens"]))
    ]
    names = list(islice(cycle(alone), REQUESTS))
    before = look(running.client)
    answers = running.client.answers([(ids[name], LENGTH) for name in names], AT_ONCE)
    done = look(running.client).since(before)
    many, differ = Comparison(), 0
    for number, (name, answer) in enumerate(zip(names, answers, strict=True)):
        many.add(compared(running, f"request {number} ({name})", alone[name], answer))
        if why := degenerate(answer.tokens, alone[name]["tokens"]):
            faults.append(f"request {number} ({name}): {why}")
        differ += answer.tokens != alone[name]["tokens"]
    running.measured.update(
        requests=REQUESTS,
        answers_with_another_token=differ,
        tokens=REQUESTS * LENGTH,
        tokens_compared=many.steps,
        engine_steps=done.count,
        preemptions=done.preempted,
    )
    found.add(many)
    if faults:
        raise TrialError(f"{faults[0]}" + (f" (and {len(faults) - 1} more)" if faults[1:] else ""))
    judge(running, found)
