"""Cases that compare servers: what one plain server answers, every other way of running the model has to answer too.

The plain server computes each prompt in one piece, alone, on one worker, and keeps nothing; its answers are compared
with the reference as far as that goes. The servers after it compute the same prompts in chunks, from a kept prefix,
with guessed tokens or on several workers. In float32 the tolerance is so small that nearly every token has to be the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from smoke_tests.alike import BRANCHES, STEM, Entry, as_entry, most_apart, prefix_prompts, reach_prompts
from smoke_tests.client import Answer, answer_of
from smoke_tests.compare import Comparison, compare_answer
from smoke_tests.models.prompts import CHUNK, NEEDLES, stream_ids
from smoke_tests.servers import SetupError, TrialError
from smoke_tests.steps import total
from smoke_tests.test_golden import SHORT, judge, one_by_one
from smoke_tests.trial import Running

LENGTH = 48
"""Tokens of an answer."""

BLOCK = 128
"""Tokens of the largest block in which prefixes are kept; what does not fill one is computed again."""

NEIGHBOURS = 31
PROMISE = "VLLM_BATCH_INVARIANT"
"""Environment variable by which a server promises that neighbours change nothing."""


def compared(running: Running, label: str, wanted: Mapping[str, Any], answer: Answer) -> Comparison:
    """Compare an answer with the one that is wanted."""
    return compare_answer(label, wanted, answer.tokens, answer.top, running.tolerance["top"])


def kept_of(running: Running, name: str) -> Entry:
    """Return what the plain server answered to a prompt."""
    key = f"{running.group.model}/{running.group.dtype}/{name}"
    if key not in running.kept:
        raise SetupError(f"no plain server of this run has answered {key}: there is nothing to compare with")
    return dict(running.kept[key])


@pytest.mark.golden
@pytest.mark.case("answers")
def test_answers(running: Running) -> None:
    """The plain server agrees with the reference; what it answers to other prompts is kept for the servers after it."""
    found = one_by_one(running, (*SHORT, "long"))
    for name, ids in {**reach_prompts(), **prefix_prompts()}.items():
        wanted = as_entry(ids, running.client.answer(ids, LENGTH))
        running.kept[f"{running.group.model}/{running.group.dtype}/{name}"] = wanted
    judge(running, found)


@pytest.mark.golden
@pytest.mark.case("same-answers")
def test_same_answers(running: Running) -> None:
    """The same tokens as the plain server's, one by one and all together, and the reference's."""
    wanted = {name: kept_of(running, name) for name in reach_prompts()}
    found = one_by_one(running, (*SHORT, "long"))
    for name, entry in wanted.items():
        found.add(compared(running, name, entry, running.client.answer(entry["ids"], LENGTH)))
    answers = running.client.answers([(entry["ids"], LENGTH) for entry in wanted.values()])
    for (name, entry), answer in zip(wanted.items(), answers, strict=True):
        found.add(compared(running, f"{name} together", entry, answer))
    judge(running, found)


@pytest.mark.case("drafted")
def test_drafted(running: Running) -> None:
    """Tokens were guessed ahead, and some of the guesses were taken: otherwise the same answers prove nothing."""
    drafts = total(running.client, "vllm:spec_decode_num_drafts_total")
    taken = total(running.client, "vllm:spec_decode_num_accepted_tokens_total")
    running.measured.update(drafts=drafts, taken=taken)
    if not drafts or not taken:
        raise TrialError(f"{drafts:.0f} drafts were made and {taken:.0f} of their tokens taken")


@pytest.mark.case("workers-2")
def test_workers(running: Running) -> None:
    """There are two workers, so that the model is indeed divided."""
    workers = sorted(command for command in running.server.census().values() if "Worker" in command)
    running.measured["workers"] = ", ".join(workers)
    if not running.server.ours:
        raise SetupError("the processes of a server given by --url cannot be seen")
    if len(workers) != 2:
        raise TrialError(f"the server has {len(workers)} workers: {', '.join(workers) or 'none'}")


@pytest.mark.golden
@pytest.mark.case("prefix-warm")
def test_prefix_warm(running: Running) -> None:
    """A prompt whose beginning is kept is answered as when all is computed; the cache's counters prove the hit."""
    wanted = {name: kept_of(running, name) for name in prefix_prompts()}
    found = Comparison()
    hits = {}

    def ask(label: str, name: str, shared: int, most: int) -> None:
        before = total(running.client, "vllm:prefix_cache_hits_total")
        found.add(compared(running, label, wanted[name], running.client.answer(wanted[name]["ids"], LENGTH)))
        hits[label] = total(running.client, "vllm:prefix_cache_hits_total") - before
        if not max(0, shared - BLOCK + 1) <= hits[label] <= most:
            raise TrialError(f"{label}: {hits[label]:.0f} tokens came from the cache, {shared} could")

    ask("cold stem", "stem", 0, 0)
    ask("warm stem", "stem", STEM - 1, STEM - 1)
    for shared in BRANCHES:
        ask(f"branch-{shared}", f"branch-{shared}", shared, shared)
    answers = running.client.answers([(entry["ids"], LENGTH) for entry in wanted.values()])
    for (name, entry), answer in zip(wanted.items(), answers, strict=True):
        found.add(compared(running, f"{name} together", entry, answer))
    judge(running, found)
    running.measured["hits"] = hits


@pytest.mark.golden
@pytest.mark.case("needle")
def test_needle(running: Running) -> None:
    """A few tokens near the beginning of a prompt of 2000 are seen at its end: other ones there move the answer.

    By as much as they move the reference's, for no tiny random model can say what they were.
    """
    assert running.golden is not None
    wanted = [running.golden["answers"][name] for name in NEEDLES]
    answers = [running.client.answer(entry["ids"], len(entry["tokens"])) for entry in wanted]
    found = Comparison()
    for name, entry, answer in zip(NEEDLES, wanted, answers, strict=True):
        found.add(compared(running, name, entry, answer))
    golden = [{int(token): value for token, value in entry["top"][0]} for entry in wanted]
    moved, due = most_apart(answers[0].top[0], answers[1].top[0]), most_apart(golden[0], golden[1])
    running.measured.update(moved_by=round(moved, 4), reference_moved_by=round(due, 4))
    if moved < due / 2:
        raise TrialError(f"other tokens at the beginning move the answer by {moved:.3f}, the reference's by {due:.3f}")
    judge(running, found)


@pytest.mark.golden
@pytest.mark.case("invariance")
def test_invariance(running: Running) -> None:
    """The same request alone and among neighbours: to the last bit (invariant), or within the tolerance of its type.

    Only a server that promises invariance (VLLM_BATCH_INVARIANT=1) is refused for being not.
    """
    ids = {"sea": running.prompt(), "reach-513": stream_ids("reach-513", CHUNK + 1)}
    crowd = [stream_ids(f"neighbour-{number}", 3 + 11 * number) for number in range(NEIGHBOURS)]
    found, invariant = Comparison(), True
    for name, prompt in ids.items():
        alone = running.client.answer(prompt, LENGTH)
        among = running.client.list_answers([*crowd[:15], prompt, *crowd[15:]], LENGTH)[15]
        found.add(compared(running, f"{name} among {NEIGHBOURS}", as_entry(prompt, alone), among))
        invariant = invariant and (alone.tokens, alone.top) == (among.tokens, among.top)
    promised = running.environment.get(PROMISE, "0") not in ("", "0")
    judge(running, found)
    running.measured.update(batch_invariance="invariant" if invariant else "not", promised=promised)
    if promised and not invariant:
        raise TrialError(f"{PROMISE} promises that neighbours change nothing, and they do, by up to {found.worst:.2g}")


@pytest.mark.golden
@pytest.mark.case("streamed-tokens")
def test_streamed_tokens(running: Running) -> None:
    """Tokens, log probabilities and text that come in pieces are those that come at once."""
    found = Comparison()
    for name, ids in {"sea": running.prompt(), "long": running.prompt("long")}.items():
        whole = running.client.answer(ids, LENGTH)
        streamed = answer_of(list(running.client.pieces(ids, LENGTH)))
        found.add(compared(running, f"{name} streamed", as_entry(ids, whole), streamed))
        if streamed.tokens == whole.tokens and streamed.text != whole.text:
            raise TrialError(f"{name}: streamed {streamed.text!r}, at once {whole.text!r}, of the same tokens")
    judge(running, found)
