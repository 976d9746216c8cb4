"""Verdicts, decided from values alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.model.errors import FixError, UsageError
from seatrial.model.fixes import AppliedFix, Finding, Kind, VerdictKind
from seatrial.model.platforms import Platform
from seatrial.model.series import Examination, LoadedFix, Patch, series_digest
from seatrial.model.verdict import Fit, blocks, judge, verdicts
from seatrial.stages.check import check
from tests.fixlab import BASE, CPU, KERNEL, PRISTINE, XPU, MemoryTree, finding, fix, loaded, series, write_tree

BOTH = (finding(part="one"), finding(part="two", line=2))
GOOD = Fit("tree")
BAD = Fit(None, "vllm/kernel.py:3 (hunk @@ -3 +3 @@)")
APPLIES = VerdictKind.APPLIES
NEEDY = fix("bug", requires=("other",))


def seen(*found: Finding, subject: bool = True) -> Examination:
    return Examination(subject, found)


@pytest.mark.parametrize(
    ("examination", "patched", "fit", "kind", "stops"),
    [
        (seen(subject=False), True, None, VerdictKind.NOT_PRESENT, False),
        (seen(), True, None, VerdictKind.UPSTREAM, False),
        (seen(*BOTH), True, GOOD, VerdictKind.APPLIES, False),
        (seen(*BOTH), True, BAD, VerdictKind.DRIFT, True),
        (seen(*BOTH), False, None, VerdictKind.DRIFT, True),
        (seen(BOTH[0]), True, GOOD, VerdictKind.PARTLY, False),
        (seen(BOTH[1]), True, BAD, VerdictKind.PARTLY, True),
        (seen(BOTH[1]), False, None, VerdictKind.PARTLY, True),
    ],
)
def test_each_kind(examination: Examination, patched: bool, fit: Fit | None, kind: VerdictKind, stops: bool) -> None:
    row = judge(loaded(fix(), patched=patched), BASE, examination, fit, {})
    assert (row.kind, blocks(row)) == (kind, stops)
    assert row.reason or kind is VerdictKind.APPLIES


def test_drift_names_the_patch_and_the_place() -> None:
    row = judge(loaded(fix()), BASE, seen(*BOTH), BAD, {})
    assert f"patches/bug/{BASE}.patch" in row.reason
    assert BAD.reason in row.reason


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (VerdictKind.APPLIES, VerdictKind.APPLIES),
        (VerdictKind.PARTLY, VerdictKind.APPLIES),
        (VerdictKind.UPSTREAM, VerdictKind.APPLIES),
        (VerdictKind.NOT_PRESENT, VerdictKind.ORPHAN),
        (VerdictKind.DRIFT, VerdictKind.ORPHAN),
        (VerdictKind.ORPHAN, VerdictKind.ORPHAN),
        (None, VerdictKind.ORPHAN),
    ],
)
def test_a_required_fix_must_be_in_the_tree(other: VerdictKind | None, kind: VerdictKind) -> None:
    row = judge(loaded(NEEDY), BASE, seen(*BOTH), GOOD, {"other": other} if other else {})
    assert row.kind is kind
    assert blocks(row) == (kind is VerdictKind.ORPHAN)


def test_nothing_to_cure_is_never_an_orphan() -> None:
    assert judge(loaded(NEEDY), BASE, seen(), None, {}).kind is VerdictKind.UPSTREAM


class Fitter:
    """Remember what was tried on what; patches named in `bad` never fit."""

    def __init__(self, *bad: str) -> None:
        self.bad = bad
        self.tried: list[tuple[str, str]] = []

    def __call__(self, start: str, patch: Patch) -> Fit:
        name = patch.path.partition("/")[0]
        self.tried.append((start, name))
        return Fit(None, "no") if name in self.bad else Fit(f"{start}+{name}")


def three(*platforms: str) -> tuple[LoadedFix, ...]:
    names = ("first", "second", "third")
    return tuple(
        loaded(fix(name, platforms=(platform,)), found=[finding(name, part) for part in ("one", "two")])
        for name, platform in zip(names, platforms, strict=True)
    )


def kinds(fitter: Fitter, fixes: tuple[LoadedFix, ...], platform: Platform | None = None) -> dict[str, VerdictKind]:
    stack = series(*fixes)
    rows = verdicts(stack, BASE, "base", stack.examine(MemoryTree(PRISTINE)), fitter, platform=platform)
    return {row.fix: row.kind for row in rows}


def test_patches_are_tried_on_those_before_them() -> None:
    fitter = Fitter()
    assert set(kinds(fitter, three("cpu", "cpu", "cpu")).values()) == {APPLIES}
    assert fitter.tried == [("base", "first"), ("base+first", "second"), ("base+first+second", "third")]


def test_one_that_does_not_fit_is_not_under_the_next() -> None:
    fitter = Fitter("second")
    assert kinds(fitter, three("cpu", "cpu", "cpu")) == {
        "first": APPLIES,
        "second": VerdictKind.DRIFT,
        "third": APPLIES,
    }
    assert fitter.tried[-1] == ("base+first", "third")


def test_an_orphan_is_not_under_the_next() -> None:
    fitter = Fitter()
    orphan = loaded(fix("orphan", requires=("gone",)), found=[finding("orphan")])
    assert kinds(fitter, (orphan, *three("cpu", "cpu", "cpu")))["orphan"] is VerdictKind.ORPHAN
    assert fitter.tried[:2] == [("base", "orphan"), ("base", "first")]


def test_fixes_of_different_platforms_never_meet() -> None:
    fitter = Fitter()
    kinds(fitter, three("cpu", "xpu", "cpu"))
    assert fitter.tried == [("base", "first"), ("base", "second"), ("base+first", "third")]


def test_a_platform_takes_its_own_fixes_by_row_or_family() -> None:
    fixes = three("cpu", "xpu", "cpu")
    assert set(kinds(Fitter(), fixes, platform=CPU)) == {"first", "third"}
    assert set(kinds(Fitter(), fixes, platform=XPU)) == {"second"}
    row = CPU.model_copy(update={"name": "cpu-big"})
    assert set(kinds(Fitter(), fixes, platform=row)) == {"first", "third"}


def test_leaving_out_is_checked() -> None:
    stack = series(loaded(fix("other")), loaded(NEEDY))
    stack.check_without(("bug",))
    stack.check_without(("bug", "other"))
    with pytest.raises(UsageError, match="other cannot be left out"):
        stack.check_without(("other",))
    with pytest.raises(UsageError, match="no fix 'typo'"):
        stack.check_without(("typo",))
    assert stack.reduced(("bug",)).series.fixes == ("other",)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (loaded(fix(), found=[finding("else")]), "reports else/one"),
        (loaded(fix(), found=[finding(part="three")]), "reports bug/three"),
        (loaded(fix(), subject=False, found=[finding()]), "free of the subject"),
    ],
)
def test_a_detector_that_contradicts_its_fix_is_an_error(one: LoadedFix, said: str) -> None:
    with pytest.raises(FixError, match=said):
        one.examine(MemoryTree(PRISTINE))


def test_a_detector_that_breaks_is_one_clear_line() -> None:
    one = loaded(fix(), found=map(BOTH.__getitem__, [7]))
    with pytest.raises(FixError, match="detector of bug failed on memory") as caught:
        one.examine(MemoryTree(PRISTINE))
    assert "IndexError" in caught.value.why


@pytest.mark.parametrize("found", [1, "bug", None])
def test_what_is_no_finding_is_the_detectors_fault(found: Any) -> None:
    with pytest.raises(FixError, match="detector of bug failed"):
        loaded(fix(), found=[found]).examine(MemoryTree(PRISTINE))


def test_a_detector_that_leaves_the_process_is_no_clean_tree() -> None:
    one = loaded(fix(), found=map(sys.exit, [0]))
    with pytest.raises(FixError, match="detector of bug failed"):
        one.examine(MemoryTree(PRISTINE))


def test_check_says_what_cures(tmp_path: Path) -> None:
    write_tree(tmp_path)
    stack = series(loaded(fix(), found=BOTH), loaded(fix("none"), subject=False))
    checked = check(tmp_path, stack)
    assert checked.findings == BOTH
    assert (checked.detectors, checked.absent) == (("bug", "none"), ("none",))
    assert checked.cures == {"bug": f"Cure bug (patches for {BASE})"}


def test_the_series_digest_sees_order_verdict_and_bytes() -> None:
    def applied(name: str, verdict: VerdictKind = APPLIES, digit: str = "0") -> AppliedFix:
        fields = {"id": name, "title": name, "kind": Kind.PYTHON, "verdict": verdict}
        return AppliedFix(**fields, patch_sha256=digit * 64, files=(KERNEL,))  # type: ignore[arg-type]

    a, b = applied("a"), applied("b")
    digests = {
        series_digest(stack)
        for stack in ((), (a,), (a, b), (b, a), (applied("a", VerdictKind.PARTLY),), (applied("a", digit="1"),))
    }
    assert len(digests) == 6
