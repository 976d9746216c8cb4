"""Compares a server's greedy answer with the golden one; used by the cases and by the proof of the golden data.

Tokens must be equal only where the reference's margin (top-1 minus top-2) is above
what rounding moves: the tolerance of the data type. After an allowed
departure the two texts have nothing in common, so the comparison of that prompt
ends there, and how far it came is counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Comparison:
    """What a comparison found."""

    steps: int = 0
    """Steps that were compared."""
    worst: float = 0.0
    """Largest difference of a log probability."""
    sum: float = 0.0
    """Sum of all differences of log probabilities, without sign."""
    count: int = 0
    """How many differences were summed."""
    faults: list[str] = field(default_factory=list)
    """One line a fault; empty when the answer agrees."""

    @property
    def mean(self) -> float:
        """Return the mean difference of a log probability, without sign."""
        return self.sum / self.count if self.count else 0.0

    def note(self, off: float) -> None:
        """Count one difference in."""
        self.worst = max(self.worst, off)
        self.sum += off
        self.count += 1

    def add(self, other: Comparison) -> None:
        """Count another comparison in."""
        self.steps += other.steps
        self.worst = max(self.worst, other.worst)
        self.sum += other.sum
        self.count += other.count
        self.faults.extend(other.faults)

    def settle(self, tolerance: Mapping[str, float]) -> None:
        """Judge the mean too, where a data type's single values may be so far off that they say little alone."""
        if (limit := tolerance.get("mean")) is not None and self.mean > limit:
            self.faults.append(
                f"log probabilities are off by {self.mean:.3f} in the mean of {self.count}, tolerance {limit:.3f}"
            )


def compare_answer(
    label: str,
    golden: Mapping[str, Any],
    tokens: Sequence[int],
    top: Sequence[Mapping[int, float]],
    tolerance: float,
) -> Comparison:
    """Compare the tokens and the top log probabilities of one prompt, step by step.

    Args:
        golden: `tokens`, `margin` and `top` (lists of id and log probability) of the reference.
        top: per step, log probabilities by token id, the chosen one included.
        tolerance: allowed difference of a log probability.
    """
    result = Comparison()
    if len(tokens) != len(golden["tokens"]) or len(top) != len(tokens):
        result.faults.append(f"{label}: {len(tokens)} tokens answered, {len(golden['tokens'])} asked for")
        return result
    for step, (token, wanted) in enumerate(zip(tokens, golden["tokens"], strict=True)):
        if not compare_step(result, f"{label} step {step}", golden["top"][step], top[step], tolerance):
            return result
        if token != wanted:
            if golden["margin"][step] > tolerance:
                result.faults.append(
                    f"{label} step {step}: token {token} instead of {wanted}, margin {golden['margin'][step]:.2f}"
                )
            return result
    return result


def compare_step(
    result: Comparison, label: str, wanted: Sequence[Sequence[float]], given: Mapping[int, float], tolerance: float
) -> bool:
    """Compare one step's log probabilities; returns whether it agrees."""
    result.steps += 1
    if bad := [token for token, value in given.items() if not math.isfinite(value) or value > 1e-3]:
        result.faults.append(f"{label}: the log probability of token {bad[0]} is {given[bad[0]]}")
        return False
    least = min(given.values(), default=0.0)
    for place, (token, value) in enumerate(wanted):
        if (found := given.get(int(token))) is None:
            # It is below all that were answered, which says something only where the reference has it well above them.
            if value - least > tolerance:
                name = "the golden first choice" if place == 0 else "token"
                result.faults.append(
                    f"{label}: {name} {int(token)} is not among the answer's, which go down to {least:.3f}, "
                    f"golden {value:.3f}, tolerance {tolerance:.3f}"
                )
                return False
            continue
        off = abs(found - value)
        result.note(off)
        if off > tolerance:
            result.faults.append(
                f"{label}: log probability of token {int(token)} is {found:.3f}, golden {value:.3f}, "
                f"tolerance {tolerance:.3f}"
            )
            return False
    return True


def compare_prompt(label: str, wanted: Sequence[float], given: Sequence[float | None], tolerance: float) -> Comparison:
    """Compare the log probabilities of a prompt's own tokens; the first has none."""
    result = Comparison()
    if len(wanted) != len(given):
        result.faults.append(f"{label}: {len(given)} prompt log probabilities for {len(wanted)} tokens")
        return result
    for place, (expected, found) in enumerate(zip(wanted, given, strict=True)):
        if place == 0:
            continue
        result.steps += 1
        if found is None or not math.isfinite(found):
            result.faults.append(f"{label} token {place}: log probability {found}")
            return result
        result.note(abs(found - expected))
        if abs(found - expected) > tolerance:
            result.faults.append(
                f"{label} token {place}: log probability {found:.3f}, golden {expected:.3f}, tolerance {tolerance:.3f}"
            )
            return result
    return result
