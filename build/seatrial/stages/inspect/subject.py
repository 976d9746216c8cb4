"""What a check is given, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from seatrial.model.expectation import Allowance, Expectation
from seatrial.model.report import Case, Outcome
from seatrial.ports.console import Console
from seatrial.ports.images import ImageFacts, OneRun
from seatrial.ports.layers import LayerSummary
from seatrial.ports.rootfs import RootFs
from seatrial.stages.inspect.environment import Environment

KEPT_PROBLEMS = 50
"""Problems that a report holds one by one; the rest is a count."""


class Excused:
    """Sort what a check met into problems and declared exceptions, and remember which exception was used for what."""

    def __init__(self, check: str, allowances: Iterable[Allowance]) -> None:
        self._allowances = [one for one in allowances if one.check == check]
        self.used: dict[str, int] = {}
        self.reasons: dict[str, str] = {}

    def allows(self, subject: str) -> bool:
        """Tell whether an allowance covers a subject, and count it."""
        for one in self._allowances:
            if fnmatchcase(subject, one.pattern):
                self.used[one.pattern] = self.used.get(one.pattern, 0) + 1
                self.reasons[one.pattern] = one.why
                return True
        return False

    def measured(self) -> dict[str, Any]:
        """Return the used allowances for the report."""
        return {
            "allowed": [
                {"pattern": pattern, "times": count, "why": self.reasons[pattern]}
                for pattern, count in sorted(self.used.items())
            ]
        }


@dataclass(frozen=True, slots=True)
class Found:
    """What a check saw. No problem and no reason for not running: it passed."""

    problems: tuple[str, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)
    not_run: str = ""

    @property
    def outcome(self) -> Outcome:
        """Return how the case ended."""
        if self.problems:
            return Outcome.FAILED
        return Outcome.NOT_RUN if self.not_run else Outcome.PASSED

    def reason(self, advice: str) -> str:
        """Return the case's one line."""
        if not self.problems:
            return self.not_run
        more = len(self.problems) - 1
        rest = f" (and {more} more)" if more else ""
        return f"{self.problems[0]}{rest}. {advice}"

    def report(self) -> dict[str, Any]:
        """Return the measurements with the first problems among them."""
        if not self.problems:
            return self.measured
        listed = list(self.problems[:KEPT_PROBLEMS])
        return {**self.measured, "problems": listed, "problem_count": len(self.problems)}


@dataclass(frozen=True, slots=True)
class Image:
    """An image as the checks see it: read once, looked at often."""

    facts: ImageFacts
    root: RootFs
    python: Environment
    allowances: tuple[Allowance, ...]
    expected: Expectation | None
    run: Callable[[tuple[str, ...], float], OneRun]
    """Run a command in the image: arguments and seconds."""
    layers: Callable[[], LayerSummary] = lambda: LayerSummary((), ())
    """Wait for what its layers hold and hide; EngineError when they cannot be read."""

    def excused(self, check: str) -> Excused:
        """Return the declared exceptions of one check."""
        return Excused(check, self.allowances)


SubjectT = TypeVar("SubjectT")

WITHOUT_EXPECTATION = "not run: nothing was given to compare with, so this cannot be known"


@dataclass(frozen=True, slots=True)
class Check(Generic[SubjectT]):
    """A row of a table: one question about an image or a wheel."""

    name: str
    what: str
    """What holds when the check passes, one sentence."""
    advice: str
    """What to do when it does not, one sentence."""
    function: Callable[[SubjectT], Found]
    needs_expectation: bool = False
    """Without an expectation the check is not run, and says so."""


def want(image: Image) -> Expectation:
    """Return the expectation; the table runs a check that needs one only when there is one."""
    assert image.expected is not None
    return image.expected


def run_check(check: Check[SubjectT], subject: SubjectT, console: Console, *, compares: bool) -> Case:
    """Run one row and show how it ended.

    Args:
        compares: there is an expectation; without one, a check that needs it is *not run*.
    """
    begun = time.monotonic()
    skipped = check.needs_expectation and not compares
    found = Found(not_run=WITHOUT_EXPECTATION) if skipped else check.function(subject)
    case = Case(
        name=check.name,
        outcome=found.outcome,
        seconds=round(time.monotonic() - begun, 3),
        reason=found.reason(check.advice),
        measured=found.report(),
    )
    if case.outcome is Outcome.PASSED:
        console.detail(f"passed   {case.name}")
    else:
        console.line(f"  {case.outcome.value:8} {case.name}: {case.reason}")
    return case
