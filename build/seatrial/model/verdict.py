"""Decide what a fix is to a base; pure, so that every case can be tested without git."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from seatrial.model.fixes import Verdict, VerdictKind
from seatrial.model.platforms import Platform
from seatrial.model.series import Examination, LoadedFix, LoadedSeries, Patch

SATISFIES = frozenset({VerdictKind.APPLIES, VerdictKind.PARTLY, VerdictKind.UPSTREAM})
"""Verdicts of a required fix after which what it brings is in the tree."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a patch goes into a tree.

    `tree` is the git tree with the patch in it, or None; `reason` says what does not fit, or by which second
    way it does.
    """

    tree: str | None
    reason: str = ""


def judge(
    loaded: LoadedFix,
    base: str,
    examination: Examination,
    fit: Fit | None,
    required: Mapping[str, VerdictKind],
) -> Verdict:
    """Return the verdict of one fix on one base.

    Args:
        examination: what its detector says of the pristine base.
        fit: the result of trying its patch for this base; None when there is no patch, or nothing to cure.
        required: verdicts of the fixes before it; those that are not in the series are missing.
    """
    patch = loaded.patch(base)

    def verdict(kind: VerdictKind, reason: str = "") -> Verdict:
        return Verdict(
            fix=loaded.id,
            base=base,
            kind=kind,
            findings=examination.findings,
            patch=patch.path if patch else None,
            patch_fits=fit is not None and fit.tree is not None,
            reason=reason,
        )

    if not examination.findings:
        if not examination.subject:
            return verdict(VerdictKind.NOT_PRESENT, "the code in which the defect lives is not in this base")
        return verdict(VerdictKind.UPSTREAM, "the code is there and the defect is not")
    for needed in loaded.fix.requires:
        if required.get(needed) not in SATISFIES:
            state = f"is {required[needed].value} here" if needed in required else "is not in the series here"
            return verdict(VerdictKind.ORPHAN, f"requires {needed}, which {state}")
    seen = {finding.part for finding in examination.findings}
    mended = [part for part in loaded.fix.parts if part not in seen]
    misfit = _misfit(loaded, base, fit)
    if mended:
        reason = f"upstream has mended {', '.join(mended)}"
        return verdict(VerdictKind.PARTLY, "; ".join(part for part in (reason, misfit) if part))
    if misfit:
        return verdict(VerdictKind.DRIFT, misfit)
    return verdict(VerdictKind.APPLIES, fit.reason if fit else "")


def _misfit(loaded: LoadedFix, base: str, fit: Fit | None) -> str:
    patch = loaded.patch(base)
    if patch is None:
        without = f"the defect is there and patches/{loaded.id} has no patch for {base}"
        return f"{without}; seatrial repair {loaded.id} takes it out of a tree" if loaded.fix.repair else without
    if fit is None or fit.tree is None:
        return f"patches/{patch.path} does not fit: {fit.reason if fit else 'not tried'}"
    return ""


Fitter = Callable[[str, Patch], Fit]
"""Tries a patch on a git tree or commit."""


def verdicts(
    series: LoadedSeries,
    base: str,
    start: str,
    examinations: Mapping[str, Examination],
    fitter: Fitter,
    *,
    platform: Platform | None = None,
) -> tuple[Verdict, ...]:
    """Return the verdict of every fix on a base, in the order of the series.

    A patch is tried on the base with those earlier fixes in place that go to the same platforms; what the
    detectors say is of the pristine base.

    Args:
        series: the fixes to judge; one that is required but not among them makes an orphan.
        start: git commit or tree of the pristine base.
        examinations: fix id to what its detector says.
        platform: judge for this one only; None judges every fix for the platforms that it names.
    """
    found: dict[str, Verdict] = {}
    stacks = _Stacks(base, start, fitter)
    for loaded in series.ordered():
        if platform is not None and not loaded.suits(platform):
            continue
        fit = None
        if loaded.patch(base) is not None and examinations[loaded.id].findings:
            below = [
                series.fixes[key] for key, row in found.items() if _stands(row) and _meet(series.fixes[key], loaded)
            ]
            fit = stacks.lay([*below, loaded])
        known = {key: row.kind for key, row in found.items()}
        found[loaded.id] = judge(loaded, base, examinations[loaded.id], fit, known)
    return tuple(found.values())


def _stands(row: Verdict) -> bool:
    return row.patch_fits and row.kind in SATISFIES


def _meet(earlier: LoadedFix, later: LoadedFix) -> bool:
    """Tell whether two fixes can be in one tree."""
    return earlier.id in later.fix.requires or bool(set(earlier.fix.platforms) & set(later.fix.platforms))


class _Stacks:
    """Lay patches upon each other, each stack once."""

    def __init__(self, base: str, start: str, fitter: Fitter) -> None:
        self._base = base
        self._fitter = fitter
        self._start = start
        self._known: dict[tuple[str, ...], Fit] = {}

    def lay(self, stack: list[LoadedFix]) -> Fit:
        """Return how the top one fits upon those below it; one below that does not fit is left out."""
        key = tuple(loaded.id for loaded in stack)
        if key not in self._known:
            below = self._highest(stack[:-1])
            patch = stack[-1].patch(self._base)
            self._known[key] = self._fitter(below, patch) if patch else Fit(None, "it has no patch")
        return self._known[key]

    def _highest(self, stack: list[LoadedFix]) -> str:
        """Return the git tree of a stack, or of the highest part of it that stands."""
        while stack:
            tree = self.lay(stack).tree
            if tree is not None:
                return tree
            stack = stack[:-1]
        return self._start


def blocks(verdict: Verdict) -> bool:
    """Tell whether a build must stop: the defect is there and the fix cannot take it away."""
    return bool(verdict.findings) and (verdict.kind is VerdictKind.ORPHAN or not verdict.patch_fits)
