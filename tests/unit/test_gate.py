"""The gate fails closed: every way in which a good report can be bent is refused, with its cause."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial.model.fixes import VerdictKind
from seatrial.model.gate import Cause, Decision, LeftOut, Policy, Requirement, decide, left_out_of
from seatrial.model.record import SkippedFix
from seatrial.model.report import Case, Device, Outcome, Report

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine is no failure."""

DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64
LOG = "RuntimeError: chunk_gated_delta_rule_cpu: initial_state dtype mismatch"
STORES = {"ports/engine_names.py", "ports/registry_names.py"}
"""What implements a store of names, one call each, for the naming stage."""
ENGINE = Path(__file__).parents[2] / "build" / "seatrial"

INSPECT = Requirement(kind="inspect", profile="inspect", cases=("elf", "labels", "size"))
SMOKE = Requirement(
    kind="smoke",
    profile="basic",
    cases=("ready", "first-request", "logprobs"),
    not_supported={"qwen3-next": "no CPU path on this base"},
)
POLICY = Policy(base="0.28.0", platform="cpu", device="cpu", requirements=(INSPECT, SMOKE))


def good(need: Requirement) -> Report:
    cases = [Case(name=name, outcome=Outcome.PASSED, seconds=0.1) for name in need.cases]
    cases += [
        Case(name=name, outcome=Outcome.NOT_SUPPORTED, reason=reason) for name, reason in need.not_supported.items()
    ]
    return Report(
        schema="seatrial.report/1",
        kind=need.kind,
        profile=need.profile,
        subject=DIGEST,
        subject_kind="image",
        platform="cpu",
        base="0.28.0",
        device=Device(kind="cpu", name="a processor"),
        started="2026-11-30T12:00:00Z",
        seconds=1.0,
        cases=tuple(cases),
    )


GOOD = (good(INSPECT), good(SMOKE))


def causes(decision: Decision) -> set[Cause]:
    return {refusal.cause for refusal in decision.refusals}


def bent(report: Report, **changes: Any) -> Report:
    return report.model_copy(update=changes)


def with_case(report: Report, name: str, **changes: Any) -> Report:
    cases = tuple(case.model_copy(update=changes) if case.name == name else case for case in report.cases)
    return bent(report, cases=cases)


def without_case(report: Report, name: str) -> Report:
    return bent(report, cases=tuple(case for case in report.cases if case.name != name))


def test_good_reports_are_allowed() -> None:
    decision = decide(DIGEST, GOOD, POLICY)
    assert decision.allowed
    assert decision.refusals == ()


Bend = Callable[[Report], Report]
ANY_REPORT: dict[Cause, Bend] = {
    Cause.OTHER_SUBJECT: lambda report: bent(report, subject=OTHER),
    Cause.OTHER_BUILD: lambda report: bent(report, platform="cuda-sm80"),
    Cause.REHEARSED: lambda report: bent(report, device=Device(kind="cpu", name="stand-in", rehearsed=True)),
    Cause.EMPTY: lambda report: bent(report, cases=()),
    Cause.MISSING_CASE: lambda report: without_case(report, report.cases[0].name),
    Cause.DOUBLE_CASE: lambda report: bent(report, cases=(*report.cases, report.cases[0])),
    Cause.UNKNOWN_CASE: lambda report: bent(report, cases=(*report.cases, Case(name="new", outcome=Outcome.PASSED))),
    Cause.BAD_CASE: lambda report: with_case(report, report.cases[0].name, outcome=Outcome.FAILED),
    Cause.UNDECLARED: lambda report: with_case(report, report.cases[0].name, outcome=Outcome.NOT_SUPPORTED),
    Cause.UNASKED_REPORT: lambda report: bent(report, profile="other"),
}


@pytest.mark.parametrize("which", [0, 1], ids=["inspect", "smoke"])
@pytest.mark.parametrize("cause", list(ANY_REPORT), ids=str)
def test_a_bent_report_is_refused_with_its_cause(cause: Cause, which: int) -> None:
    reports = list(GOOD)
    reports[which] = ANY_REPORT[cause](reports[which])
    decision = decide(DIGEST, reports, POLICY)
    assert cause in causes(decision)
    assert not decision.allowed
    assert all(refusal.sentence for refusal in decision.refusals)


@pytest.mark.parametrize("base", ["0.15.1", "", "0.28.0.post1"])
def test_a_report_of_another_base_is_refused(base: str) -> None:
    assert causes(decide(DIGEST, (GOOD[0], bent(GOOD[1], base=base)), POLICY)) == {Cause.OTHER_BUILD}


@pytest.mark.parametrize("kind", ["wheel", "venv", "url"])
def test_a_report_about_something_else_than_an_image_is_refused(kind: str) -> None:
    assert causes(decide(DIGEST, (GOOD[0], bent(GOOD[1], subject_kind=kind)), POLICY)) == {Cause.OTHER_SUBJECT}


def test_smoke_on_another_device_is_refused_and_inspect_needs_none() -> None:
    elsewhere = Device(kind="cpu", name="a processor")
    cuda = POLICY.model_copy(update={"device": "cuda"})
    decision = decide(DIGEST, [bent(report, device=elsewhere) for report in GOOD], cuda)
    assert [(refusal.cause, refusal.report) for refusal in decision.refusals] == [(Cause.OTHER_DEVICE, "smoke basic")]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ERROR, Outcome.NOT_RUN])
def test_the_failed_case_and_its_log_line_stand_in_the_sentence(outcome: Outcome) -> None:
    report = with_case(GOOD[1], "first-request", outcome=outcome, reason="HTTP 500", log_line=LOG)
    (refusal,) = decide(DIGEST, (GOOD[0], report), POLICY).refusals
    assert (refusal.cause, refusal.case, refusal.report) == (Cause.BAD_CASE, "first-request", "smoke basic")
    assert "first-request" in refusal.sentence
    assert "HTTP 500" in refusal.sentence
    assert LOG in refusal.sentence
    assert "\n" not in refusal.sentence


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (Outcome.PASSED, Cause.STALE_DECLARATION),
        (Outcome.FAILED, Cause.BAD_CASE),
        (Outcome.NOT_RUN, Cause.BAD_CASE),
    ],
)
def test_a_declared_case_has_to_end_as_declared(outcome: Outcome, cause: Cause) -> None:
    report = with_case(GOOD[1], "qwen3-next", outcome=outcome)
    assert causes(decide(DIGEST, (GOOD[0], report), POLICY)) == {cause}


def test_a_declared_case_has_to_stand_in_the_report() -> None:
    report = without_case(GOOD[1], "qwen3-next")
    assert causes(decide(DIGEST, (GOOD[0], report), POLICY)) == {Cause.MISSING_CASE}


@pytest.mark.parametrize("reports", [(), GOOD[:1], GOOD[1:]], ids=["none", "no-smoke", "no-inspect"])
def test_a_missing_report_is_refused(reports: tuple[Report, ...]) -> None:
    assert causes(decide(DIGEST, reports, POLICY)) == {Cause.NO_REPORT}


def test_a_good_report_beside_a_bad_one_does_not_help() -> None:
    bad = with_case(GOOD[1], "ready", outcome=Outcome.FAILED)
    for reports in ((*GOOD, bad), (GOOD[0], bad, GOOD[1]), (*GOOD, GOOD[1])):
        assert Cause.TWO_REPORTS in causes(decide(DIGEST, reports, POLICY))


@pytest.mark.parametrize(
    "requirements",
    [
        (),
        (SMOKE,),
        (INSPECT,),
        (INSPECT, SMOKE, SMOKE),
        (INSPECT, SMOKE.model_copy(update={"cases": ()})),
        (INSPECT, SMOKE.model_copy(update={"cases": ("ready",), "not_supported": {"ready": "why not"}})),
    ],
    ids=["nothing", "no-inspect", "no-smoke", "twice", "no-cases", "all-declared"],
)
def test_a_policy_that_asks_too_little_allows_nothing(requirements: tuple[Requirement, ...]) -> None:
    policy = POLICY.model_copy(update={"requirements": requirements})
    reports = {need.profile: good(need) for need in requirements}
    decision = decide(DIGEST, list(reports.values()), policy)
    assert Cause.NO_POLICY in causes(decision)
    for kind in ("inspect", "smoke"):
        said = any(f"asks for no {kind} report" in refusal.sentence for refusal in decision.refusals)
        assert said == (kind not in {need.kind for need in requirements})


def test_a_stack_without_a_fix_is_refused_by_its_name() -> None:
    policy = POLICY.model_copy(update={"left_out": (LeftOut(id="gdn-state-dtype", why="--without"),)})
    (refusal,) = decide(DIGEST, GOOD, policy).refusals
    assert refusal.cause is Cause.LEFT_OUT
    assert "gdn-state-dtype" in refusal.sentence


def test_a_rehearsal_is_refused() -> None:
    assert causes(decide(DIGEST, GOOD, POLICY.model_copy(update={"rehearsed": True}))) == {Cause.REHEARSED}


@pytest.mark.parametrize("verdict", list(VerdictKind))
def test_only_a_fix_with_nothing_to_mend_may_be_absent(verdict: VerdictKind) -> None:
    skipped = [SkippedFix(id="some-fix", verdict=verdict, why="because")]
    left = left_out_of(skipped, ["some-fix", "other"])
    assert bool(left) == (verdict not in (VerdictKind.NOT_PRESENT, VerdictKind.UPSTREAM))
    assert left_out_of(skipped, ["other"]) == ()


def test_every_objection_is_collected() -> None:
    report = with_case(bent(GOOD[1], subject=OTHER), "ready", outcome=Outcome.FAILED)
    policy = POLICY.model_copy(update={"left_out": (LeftOut(id="some-fix", why=""),), "device": "cuda"})
    assert causes(decide(DIGEST, (report,), policy)) == {
        Cause.LEFT_OUT,
        Cause.NO_REPORT,
        Cause.OTHER_SUBJECT,
        Cause.OTHER_DEVICE,
        Cause.BAD_CASE,
    }


cases = st.builds(
    Case,
    name=st.sampled_from([*SMOKE.promised, "stranger"]),
    outcome=st.sampled_from(list(Outcome)),
    reason=st.sampled_from(["", "why"]),
)


@calm
@given(st.lists(cases, max_size=6).map(tuple))
def test_only_exactly_the_promised_outcomes_are_allowed(drawn: tuple[Case, ...]) -> None:
    wanted = sorted([(name, Outcome.PASSED) for name in SMOKE.cases] + [("qwen3-next", Outcome.NOT_SUPPORTED)])
    decision = decide(DIGEST, (GOOD[0], bent(GOOD[1], cases=drawn)), POLICY)
    assert decision.allowed == (sorted((case.name, case.outcome) for case in drawn) == wanted)


fields = st.fixed_dictionaries(
    {
        "subject": st.sampled_from([DIGEST, OTHER]),
        "subject_kind": st.sampled_from(["image", "venv"]),
        "device": st.builds(
            Device, kind=st.sampled_from(["cpu", "cuda"]), name=st.just("a processor"), rehearsed=st.booleans()
        ),
        "base": st.sampled_from(["0.28.0", "0.15.1"]),
        "platform": st.sampled_from(["cpu", "xpu"]),
        "profile": st.sampled_from(["basic", "first-request"]),
        "kind": st.sampled_from(["smoke", "inspect"]),
    }
)


@calm
@given(fields)
def test_one_wrong_field_is_enough(drawn: dict[str, Any]) -> None:
    report = bent(GOOD[1], **drawn)
    assert decide(DIGEST, (GOOD[0], report), POLICY).allowed == (report == GOOD[1])


def naming_calls(source: str) -> list[int]:
    """Return the lines that give a tag, to an engine or in a registry."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("tag", "put_tag")
    ]


def test_nothing_but_the_naming_stage_tags() -> None:
    found = {path.relative_to(ENGINE).as_posix() for path in ENGINE.rglob("*.py") if naming_calls(path.read_text())}
    assert found == {"stages/naming.py", *STORES}


def test_nothing_but_the_naming_stage_uses_a_store_to_name() -> None:
    users = [path for path in ENGINE.rglob("*.py") if "put_tag(" in path.read_text()]
    named = {path.relative_to(ENGINE).as_posix() for path in users}
    assert named == {"model/names.py", "stages/naming.py", "ports/registry.py", *STORES}


def test_the_search_for_tagging_sees_one() -> None:
    assert naming_calls("def f(client):\n    client.images.get('x').tag('vllm', 'y')\n") == [2]
