"""Cases that compare with the golden answers: short prompts, a long one, and many at the same time."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

from smoke_tests.compare import Comparison, compare_answer, compare_prompt
from smoke_tests.servers import TrialError
from smoke_tests.trial import Running

SHORT = ("sea", "json", "words")

ONE_TOKEN_TURNS = 8
"""Times that the one-token prompt is asked, each after another prompt has used and freed a place."""


def judge(running: Running, found: Comparison) -> None:
    """Note what was compared and fail on the first fault."""
    found.settle(running.tolerance)
    running.measured.update(
        steps=found.steps, worst=round(found.worst, 4), mean=round(found.mean, 4), tolerance=running.tolerance
    )
    if found.faults:
        raise TrialError(f"{found.faults[0]}" + (f" (and {len(found.faults) - 1} more)" if found.faults[1:] else ""))
    if not found.steps:
        raise TrialError("nothing was compared")


def one_by_one(running: Running, names: tuple[str, ...]) -> Comparison:
    """Compare the answers to some golden prompts."""
    assert running.golden is not None
    total = Comparison()
    for name in names:
        wanted = running.golden["answers"][name]
        answer = running.client.answer(wanted["ids"], len(wanted["tokens"]))
        total.add(compare_answer(name, wanted, answer.tokens, answer.top, running.tolerance["top"]))
    return total


@pytest.mark.golden
@pytest.mark.case("golden")
def test_golden(running: Running) -> None:
    """Tokens and log probabilities agree with the reference, and so do those of a prompt's own tokens."""
    assert running.golden is not None
    total = one_by_one(running, SHORT)
    wanted = running.golden["scored"]
    choice = running.client.complete(wanted["ids"], 1, prompt_logprobs=0)
    rows = choice.get("prompt_logprobs") or []
    given = [
        float(row[str(token)]["logprob"]) if row and str(token) in row else None
        for token, row in zip(wanted["ids"], rows, strict=False)
    ]
    total.add(compare_prompt("scored", wanted["logprobs"], given, running.tolerance["scored"]))
    judge(running, total)


@pytest.mark.golden
@pytest.mark.case("one-token")
def test_one_token(running: Running) -> None:
    """A prompt of one token is answered from an empty state, also when its place was another request's before."""
    assert running.golden is not None
    wanted = running.golden["answers"]["one"]
    total = Comparison()
    for turn in range(1, 1 + ONE_TOKEN_TURNS):
        total.add(one_by_one(running, ("sea",)))
        answer = running.client.answer(wanted["ids"], len(wanted["tokens"]))
        total.add(compare_answer(f"turn {turn}", wanted, answer.tokens, answer.top, running.tolerance["top"]))
    judge(running, total)


@pytest.mark.golden
@pytest.mark.case("long-prompt")
def test_long_prompt(running: Running) -> None:
    """A prompt of several chunks is answered as the reference answers it in one piece."""
    judge(running, one_by_one(running, ("long",)))


@pytest.mark.case("batch-1", "batch-8", "batch-65")
def test_batch(running: Running, case: str) -> None:
    """Requests that are under way at the same time are answered as each would be alone."""
    count = int(case.rpartition("-")[2])
    if running.golden is None:
        answers = running.client.answers([(running.prompt(), 8)] * count)
        if any(len(answer.tokens) != 8 for answer in answers):
            raise TrialError("an answer of the batch has not the length asked for")
        return
    names = list(islice(cycle(SHORT), count))
    wanted = [running.golden["answers"][name] for name in names]
    answers = running.client.answers([(entry["ids"], len(entry["tokens"])) for entry in wanted])
    total = Comparison()
    for number, (name, entry, answer) in enumerate(zip(names, wanted, answers, strict=True)):
        label = f"request {number} ({name})"
        total.add(compare_answer(label, entry, answer.tokens, answer.top, running.tolerance["top"]))
    judge(running, total)
