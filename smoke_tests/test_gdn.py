"""Cases of a Gated DeltaNet layer: one for each way in which a forward may be put together, alone and in company.

What a step of the engine held is not taken on trust. A case asks in such a way that only one composition is likely, and
then counts the engine's steps (`steps.py`). When the count does not prove the composition, the case is asked again, and
at last ends as the trial's own error: it never passes on another composition than its name says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from smoke_tests.client import Answer, answer_of
from smoke_tests.compare import Comparison, compare_answer
from smoke_tests.models.prompts import CHUNK, CREW_ANSWER, LIMIT, crew
from smoke_tests.servers import SetupError
from smoke_tests.steps import Steps, look
from smoke_tests.test_golden import SHORT, judge
from smoke_tests.trial import Running

TRIES = 4
"""Times that a case asks before it says that the composition was not reached."""

SETTLE = 5.0
"""Seconds within which /metrics has to count a request that was answered."""

COMPANY = 4
"""Tokens that are asked of each prompt that comes while another one is decoded."""

MOST_BLOCKS = 4096
"""Blocks of a cache that are few enough to be used up by asking."""

Entry = Mapping[str, Any]
"""One golden answer."""


def entry(running: Running, name: str, count: int | None = None) -> Entry:
    """Return a golden answer, cut to some tokens."""
    assert running.golden is not None
    found = running.golden["answers"][name]
    return {**found, **{key: found[key][:count] for key in ("tokens", "margin", "top")}}


def compared(running: Running, label: str, wanted: Entry, answer: Answer) -> Comparison:
    """Compare one answer with the golden one."""
    return compare_answer(label, wanted, answer.tokens, answer.top, running.tolerance["top"])


def counted(running: Running, ask: Callable[[], Any], wanted: Sequence[Entry]) -> tuple[Any, Steps]:
    """Ask, and return the answer with what the engine did; it has to be what these golden answers take, and no more."""
    before = look(running.client)
    answer = ask()
    until = time.monotonic() + SETTLE
    while (done := look(running.client).since(before)).finished < len(wanted) and time.monotonic() < until:
        time.sleep(0.02)
    tokens = sum(len(found["ids"]) + len(found["tokens"]) for found in wanted)
    if (done.finished, done.tokens, done.preempted) != (len(wanted), tokens, 0):
        raise SetupError(
            f"the engine counts {done.finished} requests, {done.tokens} tokens and {done.preempted} preemptions, "
            f"asked were {len(wanted)} requests of {tokens} tokens"
        )
    return answer, done


def composed(attempt: Callable[[], tuple[Comparison, str]]) -> Comparison:
    """Repeat until the composition is proven, and return what all attempts compared.

    Args:
        attempt: returns what it compared, and why its composition is not proven (empty: it is).

    Raises:
        SetupError: it was not reached.
    """
    total = Comparison()
    for _ in range(TRIES):
        found, why = attempt()
        total.add(found)
        if not why or found.faults:
            return total
    raise SetupError(f"the composition was not reached in {TRIES} attempts: {why}")


def alone(running: Running, name: str, label: str = "") -> Comparison:
    """Ask one prompt while nothing else runs: its step and then one token a step."""
    wanted = entry(running, name)
    count = len(wanted["tokens"])

    def attempt() -> tuple[Comparison, str]:
        answer, done = counted(running, lambda: running.client.answer(wanted["ids"], count), [wanted])
        single = done.of_size(1)
        why = "" if (done.count, single) == (count, count - 1) else f"{done.count} steps, {single} of one token"
        found = compared(running, label or name, wanted, answer)
        found.settle(running.tolerance)
        return found, why

    return composed(attempt)


def together(running: Running, names: Sequence[str], count: int) -> Comparison:
    """Ask prompts in one request, and prove that at least half of the steps decode all of them.

    A running request gets a token in each step (nothing was preempted). So when all steps together are `s`, and each of
    the requests takes `count` of them in a row, then at least `2 * count - s` steps are common to all of them.
    """
    wanted = [entry(running, name, count) for name in names]

    def attempt() -> tuple[Comparison, str]:
        ask = lambda: running.client.list_answers([found["ids"] for found in wanted], count)  # noqa: E731
        answers, done = counted(running, ask, wanted)
        common = 2 * count - done.count
        sized = done.of_size(len(wanted))
        running.measured.update(common_steps=common, steps_of_that_size=sized)
        total = Comparison()
        for name, found, answer in zip(names, wanted, answers, strict=True):
            total.add(compared(running, name, found, answer))
        fine = common >= count // 2 and sized >= common - 1
        return total, "" if fine else f"{common} of {count} steps common to all, {sized} steps of that size"

    return composed(attempt)


@pytest.mark.golden
@pytest.mark.case("decode-1", "decode-2", "decode-17", f"decode-{LIMIT}", f"decode-{LIMIT + 1}")
def test_decode(running: Running, case: str) -> None:
    """This many sequences give one token each in a step: one, a small batch, the largest small one, a large one."""
    count = int(case.rpartition("-")[2])
    judge(running, alone(running, "sea") if count == 1 else together(running, crew_of(count), CREW_ANSWER))


def crew_of(count: int) -> list[str]:
    """Return prompts that all differ."""
    return [crew(number) for number in range(count)]


@pytest.mark.golden
@pytest.mark.case("prefill-1", "prefill-short", f"prefill-{LIMIT}", f"prefill-{LIMIT + 1}", "prefill-300")
def test_prefill(running: Running, case: str) -> None:
    """One prompt fills a step: a single token, some, the largest small batch, the smallest large one, a large one."""
    size = case.partition("-")[2]
    total = Comparison()
    for name in {"1": ("one",), "short": SHORT}.get(size, (f"prompt-{size}",)):
        total.add(alone(running, name))
    judge(running, total)


@pytest.mark.golden
@pytest.mark.case("chunks-1", f"chunks-{LIMIT}", f"chunks-{LIMIT + 1}", "chunks-many")
def test_chunks(running: Running, case: str) -> None:
    """A prompt's second chunk starts from the state of the first, whatever its size; and so on for three chunks."""
    size = case.partition("-")[2]
    name = "long" if size == "many" else f"prompt-{CHUNK + int(size)}"
    judge(running, alone(running, name))


@pytest.mark.golden
@pytest.mark.case("mixed")
def test_mixed(running: Running) -> None:
    """While one sequence is decoded, a prompt of three chunks, a short one and one of a single token come in.

    Proven by the count: all steps that gave a token gave one to the first sequence. A step that only computes a part
    of a prompt is not counted; that it decodes as well is the scheduler's rule.
    """
    watch = entry(running, "watch")
    names = ("long", "sea", "one")
    company = [entry(running, name, COMPANY) for name in names]

    def ask() -> tuple[Answer, list[Answer]]:
        with ThreadPoolExecutor(1) as pool:
            stream = running.client.pieces(watch["ids"], len(watch["tokens"]))
            pieces = [next(stream)]
            later = pool.submit(running.client.list_answers, [found["ids"] for found in company], COMPANY)
            pieces.extend(stream)
            return answer_of(pieces), later.result()

    def attempt() -> tuple[Comparison, str]:
        (first, others), done = counted(running, ask, [watch, *company])
        total = compared(running, "watch", watch, first)
        running.measured.update(watch_steps=total.steps)
        for name, found, answer in zip(names, company, others, strict=True):
            total.add(compared(running, name, found, answer))
        steps = len(watch["tokens"])
        return total, "" if done.count == steps else f"{done.count} steps, {steps} of them of the first sequence"

    judge(running, composed(attempt))


@pytest.mark.golden
@pytest.mark.case("reused-slots")
def test_reused_slots(running: Running) -> None:
    """After more requests than the cache has blocks no place is fresh: all prompts start from an empty state."""
    blocks = look(running.client).blocks
    if not 0 < blocks <= MOST_BLOCKS:
        raise SetupError(f"the cache has {blocks} blocks: too many to be used up by asking")
    crowd = [entry(running, name)["ids"] for name in crew_of(LIMIT)]
    while (finished := look(running.client).finished) < blocks:
        running.client.list_answers(crowd, 1)
        if look(running.client).finished == finished:
            time.sleep(0.05)
    total = Comparison()
    for name in ("one", "sea", "one", f"prompt-{LIMIT + 1}", "one", "prompt-300", "one"):
        total.add(alone(running, name, f"{name} on a used place"))
    total.add(together(running, ["one"] * 8, CREW_ANSWER))
    judge(running, total)
    running.measured.update(blocks=blocks, requests_before=finished)
