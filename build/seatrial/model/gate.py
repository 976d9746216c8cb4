"""The gate: whether an image may be named, decided from values alone and closed by default.

What is asked of an image stands in a :class:`Policy`. :func:`decide` compares it
with the reports and collects every objection; a decision without objections is
an allowed one, and an empty policy always has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import Literal

from pydantic import Field

from seatrial.model.fixes import VerdictKind
from seatrial.model.record import SkippedFix
from seatrial.model.report import Case, Outcome, Report
from seatrial.model.values import Frozen, Identifier

ReportKind = Literal["inspect", "smoke"]

KINDS: tuple[ReportKind, ...] = ("inspect", "smoke")
"""A policy has to require at least one report of each kind."""

CURED = (VerdictKind.NOT_PRESENT, VerdictKind.UPSTREAM)
"""Verdicts with which a fix may be absent from a release: there is nothing left to mend."""


class Requirement(Frozen):
    """One report that has to be there, with the cases it promises."""

    kind: ReportKind
    profile: Identifier
    cases: tuple[str, ...]
    """Cases that the profile promises; whether the declared ones stand here as well makes no difference."""
    not_supported: dict[str, str] = Field(default_factory=dict)
    """Case to reason, for the cases that the profile declares as impossible on this base and platform."""

    @property
    def promised(self) -> tuple[str, ...]:
        """Return every case that the report has to hold, in order."""
        return tuple(dict.fromkeys((*self.cases, *self.not_supported)))


class LeftOut(Frozen):
    """A fix that a build leaves out although its defect is there."""

    id: Identifier
    why: str


class Policy(Frozen):
    """What an image needs before it gets a name."""

    base: str
    platform: str
    device: str
    """Device kind on which every smoke report has to be made."""
    requirements: tuple[Requirement, ...]
    left_out: tuple[LeftOut, ...] = ()
    rehearsed: bool = False
    """The run was asked to rehearse (a stand-in for the device)."""


class Cause(StrEnum):
    """Why the gate refuses."""

    NO_POLICY = "no-policy"
    NO_REPORT = "no-report"
    TWO_REPORTS = "two-reports"
    UNASKED_REPORT = "unasked-report"
    OTHER_SUBJECT = "other-subject"
    OTHER_BUILD = "other-build"
    OTHER_DEVICE = "other-device"
    REHEARSED = "rehearsed"
    EMPTY = "empty"
    MISSING_CASE = "missing-case"
    DOUBLE_CASE = "double-case"
    UNKNOWN_CASE = "unknown-case"
    BAD_CASE = "bad-case"
    UNDECLARED = "undeclared"
    STALE_DECLARATION = "stale-declaration"
    LEFT_OUT = "left-out"


class Refusal(Frozen):
    """One objection, as a sentence for people and as fields for programs."""

    cause: Cause
    sentence: str
    report: str = ""
    """`kind profile` of the report it is about."""
    case: str = ""


class Decision(Frozen):
    """The gate's answer about one digest. It is a statement: nothing takes it as a permit."""

    subject: str
    refusals: tuple[Refusal, ...]

    @property
    def allowed(self) -> bool:
        """Tell whether nothing stands against a name."""
        return not self.refusals


def left_out_of(skipped: Sequence[SkippedFix], meant: Collection[str]) -> tuple[LeftOut, ...]:
    """Return the skipped fixes that a release on this platform would need.

    Args:
        skipped: what the tree does not hold, for whatever reason.
        meant: ids of the series' fixes that are meant for the platform.
    """
    return tuple(LeftOut(id=fix.id, why=fix.why) for fix in skipped if fix.id in meant and fix.verdict not in CURED)


def decide(subject: str, reports: Sequence[Report], policy: Policy) -> Decision:
    """Judge an image by its reports and collect every objection.

    Args:
        subject: manifest digest of the image that is to be named.
        reports: what inspect and smoke saw; exactly one for each requirement.
        policy: what is asked.
    """
    return Decision(subject=subject, refusals=tuple(_objections(subject, reports, policy)))


def _objections(subject: str, reports: Sequence[Report], policy: Policy) -> Iterator[Refusal]:
    yield from _policy_objections(policy)
    asked = {(need.kind, need.profile) for need in policy.requirements}
    for report in reports:
        if (report.kind, report.profile) not in asked:
            yield Refusal(
                cause=Cause.UNASKED_REPORT,
                report=f"{report.kind} {report.profile}",
                sentence=f"{report.kind} {report.profile}: nobody asked for this report, so it cannot be judged",
            )
    for need in policy.requirements:
        name = f"{need.kind} {need.profile}"
        found = [report for report in reports if (report.kind, report.profile) == (need.kind, need.profile)]
        if not found:
            yield Refusal(cause=Cause.NO_REPORT, report=name, sentence=f"{name}: there is no report; it was not run")
        if len(found) > 1:
            yield Refusal(
                cause=Cause.TWO_REPORTS, report=name, sentence=f"{name}: there are {len(found)} reports; give one"
            )
        for report in found:
            yield from _report_objections(subject, report, need, policy)


def _policy_objections(policy: Policy) -> Iterator[Refusal]:
    for kind in KINDS:
        if not any(need.kind == kind for need in policy.requirements):
            yield Refusal(cause=Cause.NO_POLICY, sentence=f"the platform {policy.platform} asks for no {kind} report")
    for (kind, profile), count in Counter((need.kind, need.profile) for need in policy.requirements).items():
        if count > 1:
            yield Refusal(cause=Cause.NO_POLICY, sentence=f"{kind} {profile} is asked for {count} times")
    for need in policy.requirements:
        if not set(need.cases) - set(need.not_supported):
            yield Refusal(
                cause=Cause.NO_POLICY,
                report=f"{need.kind} {need.profile}",
                sentence=f"{need.kind} {need.profile}: the profile promises no case that has to pass",
            )
    for fix in policy.left_out:
        because = f" ({fix.why})" if fix.why else ""
        yield Refusal(
            cause=Cause.LEFT_OUT,
            sentence=f"the build leaves out {fix.id}{because}; a name is for the whole series",
        )
    if policy.rehearsed:
        yield Refusal(cause=Cause.REHEARSED, sentence="the run was a rehearsal; a name is for the real thing")


def _report_objections(subject: str, report: Report, need: Requirement, policy: Policy) -> Iterator[Refusal]:
    name = f"{need.kind} {need.profile}"

    def refusal(cause: Cause, text: str) -> Refusal:
        return Refusal(cause=cause, report=name, sentence=f"{name}: {text}")

    if report.subject != subject or report.subject_kind != "image":
        yield refusal(
            Cause.OTHER_SUBJECT, f"the report is about the {report.subject_kind} {report.subject}, not about {subject}"
        )
    if (report.base, report.platform) != (policy.base, policy.platform):
        yield refusal(
            Cause.OTHER_BUILD,
            f"the report is about base {report.base} on {report.platform}, not {policy.base} on {policy.platform}",
        )
    if report.device.rehearsed:
        yield refusal(Cause.REHEARSED, f"the report was made with a stand-in for the device ({report.device.name})")
    if need.kind == "smoke" and report.device.kind != policy.device:
        yield refusal(
            Cause.OTHER_DEVICE, f"it ran on {report.device.kind} ({report.device.name}), not on {policy.device}"
        )
    if not report.cases:
        yield refusal(Cause.EMPTY, "the report is empty; no case was run")
        return
    yield from _case_objections(report, need, name)


def _case_objections(report: Report, need: Requirement, name: str) -> Iterator[Refusal]:
    counts = Counter(case.name for case in report.cases)
    for promised in need.promised:
        if promised not in counts:
            yield Refusal(
                cause=Cause.MISSING_CASE,
                report=name,
                case=promised,
                sentence=f"{name}: {promised} is promised and was not run",
            )
    for case_name, count in counts.items():
        if count > 1:
            yield Refusal(
                cause=Cause.DOUBLE_CASE,
                report=name,
                case=case_name,
                sentence=f"{name}: {case_name} stands in the report {count} times",
            )
    for case in report.cases:
        problem = _problem(case, need)
        if problem is not None:
            cause, text = problem
            yield Refusal(cause=cause, report=name, case=case.name, sentence=f"{name}: {case.name} {text}")


def _problem(case: Case, need: Requirement) -> tuple[Cause, str] | None:
    """Return what stands against one case, or None."""
    declared = need.not_supported.get(case.name)
    if case.outcome not in (Outcome.PASSED, Outcome.NOT_SUPPORTED):
        verb = {Outcome.ERROR: "could not be carried out", Outcome.NOT_RUN: "was not run"}.get(case.outcome, "failed")
        because = f": {case.reason}" if case.reason else ""
        log = f" [server's log: {case.log_line.strip()}]" if case.log_line.strip() else ""
        return Cause.BAD_CASE, verb + because + log
    if case.name not in need.promised:
        return Cause.UNKNOWN_CASE, f"{case.outcome.value}, and the profile does not promise it: made by other cases"
    if case.outcome is Outcome.NOT_SUPPORTED and declared is None:
        because = f" ({case.reason})" if case.reason else ""
        return Cause.UNDECLARED, f"is called not supported{because}, and the profile does not declare that"
    if case.outcome is Outcome.PASSED and declared is not None:
        return Cause.STALE_DECLARATION, f"passed, and the profile declares it as not supported ({declared}): promise it"
    return None
