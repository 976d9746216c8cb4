"""The profile `extended` against a server that goes wrong in chosen ways: each case is seen red for its fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.model.report import Outcome, Report
from seatrial.stages.smoke import expected_cases
from tests.smokelab import Runner

PROFILE = ("--profile", "extended", "--server-env", "WORKERS=1")


def named(report: Report, group: str) -> dict[str, tuple[Outcome, str]]:
    return {
        case.name.partition("/")[2]: (case.outcome, case.reason)
        for case in report.cases
        if case.name.startswith(f"{group}/")
    }


def red(report: Report) -> set[str]:
    return {case.name for case in report.cases if case.outcome is Outcome.FAILED}


def test_all_is_well(trial: Runner, suite: Path) -> None:
    report, _ = trial("", *PROFILE)
    wanted = expected_cases(suite, "extended", "0.28.0", "cpu")
    assert [case.name for case in report.cases] == list(wanted.cases)
    for case in report.cases:
        declared = case.name in wanted.not_supported
        assert case.outcome is (Outcome.NOT_SUPPORTED if declared else Outcome.PASSED), case
    measured = {case.name: case.measured for case in report.cases}
    assert measured["plain/load"]["answers_with_another_token"] == 0
    assert measured["plain/invariance"]["batch_invariance"] == "invariant"
    assert measured["chunks-and-prefixes/prefix-warm"]["hits"]["branch-500"] == 384
    assert measured["load/broken-clients"]["tokens"] < measured["load/broken-clients"]["asked"]
    assert measured["bad-requests/bad-requests"]["requests"] == 1000
    assert measured["tensor-parallel/worker-kill"]["killed"].startswith("VLLM::Worker_1")
    assert measured["bad-requests/worker-kill"]["killed"].startswith("VLLM::EngineCore")


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("wrong-warm", "chunks-and-prefixes/prefix-warm"),
        ("wrong-chunked", "chunks-and-prefixes/same-answers"),
        ("wrong-guess", "ngram/same-answers"),
        ("wrong-parallel", "tensor-parallel/same-answers"),
        ("wrong-layers", "pipeline-parallel/same-answers"),
    ],
)
def test_another_way_of_running_that_answers_otherwise_is_seen(trial: Runner, fault: str, seen: str) -> None:
    report, _ = trial(fault, *PROFILE, "-k", "plain or test_same_answers or test_prefix_warm or test_ready")
    assert seen in red(report)
    assert {name.partition("/")[0] for name in red(report)} == {seen.partition("/")[0]}
    assert "log probability" in next(case.reason for case in report.cases if case.name == seen)


def test_without_a_plain_server_nothing_is_compared(trial: Runner) -> None:
    report, _ = trial("", *PROFILE, "-k", "chunks-and-prefixes and (ready or same_answers)")
    outcome, reason = named(report, "chunks-and-prefixes")["same-answers"]
    assert outcome is Outcome.ERROR
    assert "nothing to compare with" in reason


@pytest.mark.parametrize(
    ("fault", "case", "says"),
    [
        ("never-takes", "ngram/drafted", "0 of their tokens taken"),
        ("one-worker", "tensor-parallel/workers-2", "the server has 1 workers"),
        ("one-worker", "pipeline-parallel/workers-2", "the server has 1 workers"),
        ("never-keeps", "chunks-and-prefixes/prefix-warm", "warm stem: 0 tokens came from the cache, 1499 could"),
        ("no-cache-metrics", "chunks-and-prefixes/prefix-warm", "does not say: vllm:prefix_cache_hits_total"),
        ("unparsed", "plain/tools-auto", "was answered as"),
        ("no-grammar", "plain/tools-auto", "is not JSON"),
        ("wrong-stream", "plain/streamed-tokens", "log probability"),
        ("other-text", "plain/streamed-tokens", "of the same tokens"),
        ("short-sighted", "plain/needle", "move the answer by 0.000, the reference's by 0.7"),
        ("wrong-length-2000", "chunks-and-prefixes/needle", "log probability"),
    ],
)
def test_a_fault_is_seen_by_its_case(trial: Runner, fault: str, case: str, says: str) -> None:
    words = "test_ready or test_answers or test_drafted or test_workers or test_prefix_warm or test_tools_auto"
    report, _ = trial(fault, *PROFILE, "-k", f"{words} or test_streamed_tokens or test_needle")
    found = {entry.name: entry for entry in report.cases}[case]
    assert found.outcome is Outcome.FAILED, found
    assert says in found.reason


@pytest.mark.parametrize(
    ("fault", "group", "says"),
    [
        ("exclaims", "plain", "the first token of the vocabulary 32 times in a row (and "),
        ("loops", "load", "it ends with the same 2 tokens over and over: [40, 41] (and "),
        ("unsteady", "plain", "token 1 instead of"),
        ("nan", "load", "log probability of token"),
    ],
)
def test_load_sees_an_answer_that_differs(trial: Runner, fault: str, group: str, says: str) -> None:
    report, _ = trial(fault, *PROFILE, "-k", f"{group} and (test_ready or test_load)")
    outcome, reason = named(report, group)["load"]
    assert outcome is Outcome.FAILED
    assert says in reason


@pytest.mark.parametrize("promise", [True, False])
def test_invariance_is_noted_and_refused_only_where_it_is_promised(trial: Runner, promise: bool) -> None:
    words = ["--server-env", "VLLM_BATCH_INVARIANT=1"] if promise else []
    report, _ = trial("wavers", *PROFILE, *words, "-k", "plain and (test_ready or test_invariance)")
    found = {entry.name: entry for entry in report.cases}["plain/invariance"]
    assert found.measured["batch_invariance"] == "not"
    assert found.outcome is (Outcome.FAILED if promise else Outcome.PASSED)
    assert ("promises that neighbours change nothing" in found.reason) == promise


@pytest.mark.parametrize(
    ("fault", "case", "says"),
    [
        ("takes-bad", "bad-requests", "were not refused by a status of 4xx: no body: HTTP 200"),
        ("stumbles", "bad-requests", "half a document: HTTP 500"),
        ("stumbles", "worst-token", "a bad request was answered HTTP 500"),
        ("dies-of-bad", "bad-requests", "was not answered"),
    ],
)
def test_a_bad_request_that_is_not_refused_is_seen(trial: Runner, fault: str, case: str, says: str) -> None:
    report, _ = trial(fault, *PROFILE, "--base", "0.16.0", "-k", "bad-requests and not next")
    outcome, reason = named(report, "bad-requests")[case]
    assert outcome is Outcome.FAILED
    assert says in reason


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("never-lets-go", "requests still run 20 s after their clients have gone"),
        ("computes-on", "for clients that had gone"),
        ("wrong-logits", "log probability"),
    ],
)
def test_work_for_clients_that_have_gone_is_seen(trial: Runner, fault: str, says: str) -> None:
    report, _ = trial(fault, *PROFILE, "-k", "load and (test_ready or test_broken_clients)")
    outcome, reason = named(report, "load")["broken-clients"]
    assert outcome is Outcome.FAILED
    assert says in reason


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("notices-nothing", "the open request hangs: /v1/completions was not answered within 4 s"),
        ("blind", "/health still answers 200 3 s after"),
        ("lives-on", "still ran 3 s after"),
    ],
)
def test_a_killed_worker_that_is_not_noticed_is_seen(trial: Runner, fault: str, says: str) -> None:
    report, _ = trial(fault, *PROFILE, "-k", "tensor-parallel and (test_ready or test_worker_kill)")
    outcome, reason = named(report, "tensor-parallel")["worker-kill"]
    assert outcome is Outcome.FAILED
    assert says in reason
