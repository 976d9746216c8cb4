"""A vs B: what two reports say of each fix, and what they must not be taken to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seatrial.model.comparison import Comparison, Worth, compare
from seatrial.model.errors import UsageError
from seatrial.model.fixes import Fix
from seatrial.model.report import Report
from seatrial.model.values import parse_data
from seatrial.stages.fix_files import load_series
from seatrial.stages.smoke import read_profiles
from seatrial.stages.smoke_page import comparison_page, headline

ROOT = Path(__file__).parents[2]
WITH, WITHOUT = ("sha256:" + letter * 64 for letter in "ab")
CASES = ("a/ready", "a/chat", "b/serves-or-refuses")


def report_of(subject: str, outcomes: Mapping[str, str] | None = None, **more: Any) -> Report:
    """Return a report in which all cases passed but those that are named."""
    cases = [
        {"name": name, "outcome": outcome, "seconds": 1.0, "reason": "" if outcome == "passed" else f"{outcome} here"}
        for name in CASES
        for outcome in [(outcomes or {}).get(name, "passed")]
    ]
    data = {
        "schema": "seatrial.report/1",
        "kind": "smoke",
        "profile": "basic",
        "subject": subject,
        "subject_kind": "image",
        "platform": "cpu",
        "base": "0.28.0",
        "device": {"kind": "cpu", "name": "one"},
        "started": "2026-01-01T00:00:00Z",
        "seconds": 90.0,
        "cases": cases,
        **more,
    }
    return parse_data(Report, data, "report")


def fix_of(name: str = "some-fix", parts: Sequence[str] = ("late",), shows: Sequence[dict[str, Any]] = ()) -> Fix:
    data = {
        "id": name,
        "title": "t",
        "kind": "python",
        "why": "w",
        "references": [],
        "platforms": ["cpu"],
        "bases": ["0.28.0"],
        "parts": parts,
        "drop_when": "d",
        "proof": "test_x.py",
        "shows": shows,
    }
    return parse_data(Fix, data, "fix")


LATE = {"part": "late", "cases": ["b/serves-or-refuses"], "where": "on machines of one kind"}


def compared(
    mine: Mapping[str, str] | None = None,
    theirs: Mapping[str, str] | None = None,
    *,
    shows: Sequence[dict[str, Any]] = (LATE,),
    also: Sequence[str] = (),
) -> Comparison:
    fix = fix_of(shows=shows)
    return compare(report_of(WITH, mine), report_of(WITHOUT, theirs), {fix.id: fix}, [fix.id], also)


@pytest.mark.parametrize(
    ("mine", "theirs", "worth", "says"),
    [
        ({}, {"b/serves-or-refuses": "failed"}, Worth.LOAD_BEARING, "red without it and green with it: failed here"),
        ({}, {}, Worth.NOT_SHOWN, "not shown on this host; it shows on machines of one kind"),
        ({"b/serves-or-refuses": "failed"}, {"b/serves-or-refuses": "failed"}, Worth.STILL_RED, "red with the fix"),
        ({"b/serves-or-refuses": "failed"}, {}, Worth.STILL_RED, "red with the fix"),
        ({}, {"b/serves-or-refuses": "not-run"}, Worth.NOT_ASKED, "none of its cases on both sides"),
        ({"b/serves-or-refuses": "not-supported"}, {}, Worth.NOT_ASKED, "none of its cases on both sides"),
    ],
)
def test_a_fix_is_worth_what_its_cases_say(
    mine: dict[str, str], theirs: dict[str, str], worth: Worth, says: str
) -> None:
    (part,) = compared(mine, theirs).fixes
    assert part.worth is worth
    assert says in part.says


def test_a_fix_without_cases_or_in_both_images_is_not_called_needed() -> None:
    red = {"b/serves-or-refuses": "failed"}
    assert compared({}, red, shows=()).fixes[0].worth is Worth.UNDECLARED
    assert compared({}, red, also=["some-fix"]).fixes[0].worth is Worth.IN_BOTH
    asked = compared({}, red, shows=[{"part": "late", "cases": ["other/case"]}])
    assert asked.fixes[0].worth is Worth.NOT_ASKED
    lost = compare(report_of(WITH), report_of(WITHOUT), {}, ["gone"], [])
    assert lost.fixes[0].worth is Worth.UNDECLARED


def test_what_no_fix_explains_is_listed() -> None:
    found = compared({}, {"a/chat": "failed", "b/serves-or-refuses": "failed", "a/ready": "not-run"})
    assert [pair.name for pair in found.unexplained] == ["a/chat"]
    assert [pair.name for pair in found.not_judged] == ["a/ready"]
    assert "1 load-bearing; 1 cases differ" in headline(found)
    worse = compared({"a/chat": "error"}, {})
    assert [pair.name for pair in worse.unexplained] == ["a/chat"]
    both = compared({}, {"b/serves-or-refuses": "failed"}, also=["some-fix"])
    assert [pair.name for pair in both.unexplained] == ["b/serves-or-refuses"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"profile": "gdn"}, "same profile: basic and gdn"),
        ({"base": "0.32.0"}, "same base"),
        ({"platform": "xpu"}, "same platform"),
        ({"device": {"kind": "cpu", "name": "two"}}, "same device: one and two"),
        ({"cases": []}, "same cases"),
        ({"subject": WITH}, "with itself"),
    ],
)
def test_reports_about_different_things_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compare(report_of(WITH), report_of(WITHOUT, **more) if "subject" not in more else report_of(WITH), {}, [], [])


def test_the_page_of_a_comparison_shows_each_part_and_escapes() -> None:
    found = compared({}, {"b/serves-or-refuses": "failed"})
    page = comparison_page(found.model_copy(update={"base": "<b>"}))
    assert "load-bearing" in page
    assert "b/serves-or-refuses" in page
    assert "<b>1" not in page
    assert "&lt;b&gt;" in page


def test_every_declared_case_is_one_of_a_profile() -> None:
    known = set()
    table = read_profiles(ROOT / "smoke_tests")
    for profile in table.profiles.values():
        for group in profile.groups:
            names = [group.name] if not group.first else []
            names += [group.name.format(model=model, case=first) for model in group.models for first in group.first]
            known |= {f"{name}/{case}" for name in names for case in group.cases if "{" not in case}
            known |= {
                f"{group.name.format(model=model, case=first)}/{first}"
                for model in group.models
                for first in group.first
            }
    declared = [
        (loaded.id, entry.part, case)
        for loaded in load_series(ROOT / "patches").ordered()
        for entry in loaded.fix.shows
        for case in entry.cases
    ]
    assert declared, "no fix says what smoke sees of it"
    assert [entry for entry in declared if entry[2] not in known] == []
