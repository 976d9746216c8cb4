"""A vs B: the same smoke profile on two images, and what each fix of the first is worth on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

from pydantic import Field

from seatrial.model.errors import UsageError
from seatrial.model.fixes import Fix, Shows
from seatrial.model.report import Case, Device, Outcome, Report
from seatrial.model.values import Frozen, ImageDigest

RED = (Outcome.FAILED, Outcome.ERROR)
GREEN = (Outcome.PASSED,)


class Worth(StrEnum):
    """What a run shows of one part of a fix."""

    LOAD_BEARING = "load-bearing"
    """A case is red without the fix and green with it."""
    NOT_SHOWN = "not-shown"
    """The cases are green without the fix too: its defect does not show on this machine."""
    NOT_ASKED = "not-asked"
    """The profile has none of the cases, or none was run on both sides."""
    STILL_RED = "still-red"
    """A case is red with the fix too."""
    IN_BOTH = "in-both"
    """The other image has the fix as well."""
    UNDECLARED = "undeclared"
    """No smoke case is declared for it."""


class Pair(Frozen):
    """One case on both sides."""

    name: str
    with_fixes: Outcome
    without: Outcome
    seconds: tuple[float, float]
    """With the fixes, without them."""
    reason: str = ""
    """Why the red side is red."""
    log_line: str = ""


class PartWorth(Frozen):
    """What the two runs show of one part of a fix."""

    fix: str
    part: str
    worth: Worth
    says: str
    """One sentence."""
    cases: tuple[Pair, ...] = ()


class Comparison(Frozen):
    """Two reports of one profile, side by side."""

    schema_id: Literal["seatrial.comparison/1"] = Field(default="seatrial.comparison/1", alias="schema")
    profile: str
    platform: str
    base: str
    device: Device
    with_fixes: ImageDigest
    without: ImageDigest
    fixes: tuple[PartWorth, ...]
    unexplained: tuple[Pair, ...]
    """Cases that are green on one side and red on the other, though no fix says so."""
    not_judged: tuple[Pair, ...]
    """Cases that one side never came to, mostly because its server had died."""
    cases: int
    seconds: tuple[float, float]


def compare(
    report: Report, other: Report, fixes: Mapping[str, Fix], inside: Sequence[str], also: Sequence[str]
) -> Comparison:
    """Return what the fixes of one image are worth, by a run of the same profile without them.

    Args:
        report: of the image with the fixes.
        other: of the image without them, or without some of them.
        fixes: every fix of the series, by id.
        inside: ids of the fixes in the first image.
        also: ids of the fixes in the second image.

    Raises:
        UsageError: the two reports are not about the same profile, platform, base and device.
    """
    _comparable(report, other)
    pairs = {case.name: _pair(case, rest) for case in report.cases for rest in other.cases if rest.name == case.name}
    parts = tuple(
        part
        for name in inside
        for part in (_parts(fixes[name], pairs, name in also) if name in fixes else (_unknown(name),))
    )
    explained = {pair.name for part in parts if part.worth is not Worth.IN_BOTH for pair in part.cases}
    differ = [pair for pair in pairs.values() if pair.with_fixes is not pair.without]
    judged = (*RED, *GREEN)
    settled = [pair for pair in differ if pair.with_fixes in judged and pair.without in judged]
    turned = [pair for pair in settled if (pair.with_fixes in RED) is not (pair.without in RED)]
    return Comparison(
        profile=report.profile,
        platform=report.platform,
        base=report.base,
        device=report.device,
        with_fixes=report.subject,
        without=other.subject,
        fixes=parts,
        unexplained=tuple(pair for pair in turned if pair.name not in explained),
        not_judged=tuple(pair for pair in differ if pair not in settled),
        cases=len(pairs),
        seconds=(report.seconds, other.seconds),
    )


def _comparable(report: Report, other: Report) -> None:
    """Refuse two reports that are about different things, or about one."""
    asked = [
        ("kind", report.kind, other.kind),
        ("profile", report.profile, other.profile),
        ("platform", report.platform, other.platform),
        ("base", report.base, other.base),
        ("device", report.device.name, other.device.name),
        ("cases", ",".join(case.name for case in report.cases), ",".join(case.name for case in other.cases)),
    ]
    for what, mine, theirs in asked:
        if mine != theirs:
            shown = f"{mine[:60]} and {theirs[:60]}" if what != "cases" else "one was made by other cases"
            raise UsageError(
                f"the two reports are not of the same {what}: {shown}",
                do="smoke both images with the same checkout, profile and machine",
            )
    if report.subject == other.subject:
        raise UsageError("an image cannot be compared with itself", do="give the digest of one without the fixes")


def _pair(case: Case, other: Case) -> Pair:
    red = other if other.outcome in RED else case
    told = red if red.outcome is not Outcome.PASSED else other
    return Pair(
        name=case.name,
        with_fixes=case.outcome,
        without=other.outcome,
        seconds=(case.seconds, other.seconds),
        reason=told.reason,
        log_line=told.log_line,
    )


def _unknown(name: str) -> PartWorth:
    says = "the image's label names it, this checkout does not know it"
    return PartWorth(fix=name, part="", worth=Worth.UNDECLARED, says=says)


def _parts(fix: Fix, pairs: Mapping[str, Pair], in_both: bool) -> tuple[PartWorth, ...]:
    """Return what is known of each part of a fix; parts without cases are said to have none."""
    found = []
    for part in fix.parts:
        shows = [entry for entry in fix.shows if entry.part == part]
        hit = tuple(pairs[name] for entry in shows for name in entry.cases if name in pairs)
        worth, says = (Worth.IN_BOTH, "both images have it") if in_both else _worth(shows, hit)
        found.append(PartWorth(fix=fix.id, part=part, worth=worth, says=says, cases=hit))
    return tuple(found)


def _worth(shows: Sequence[Shows], hit: Sequence[Pair]) -> tuple[Worth, str]:
    """Judge one part by the cases that its defect turns red."""
    where = "; ".join(entry.where for entry in shows if entry.where)
    if not shows:
        return Worth.UNDECLARED, "no smoke case is declared for it: its proof is the fix's own"
    if bad := [pair for pair in hit if pair.with_fixes in RED]:
        return Worth.STILL_RED, f"{bad[0].name} is red with the fix: {bad[0].reason}"
    if good := [pair for pair in hit if pair.with_fixes in GREEN and pair.without in RED]:
        return Worth.LOAD_BEARING, f"{good[0].name} is red without it and green with it: {good[0].reason}"
    if any(pair.with_fixes in GREEN and pair.without in GREEN for pair in hit):
        return Worth.NOT_SHOWN, "not shown on this host" + (f"; it shows {where}" if where else "")
    return Worth.NOT_ASKED, "the profile asks for none of its cases on both sides"
