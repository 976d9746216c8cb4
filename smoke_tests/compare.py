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
    faults: list[str] = field(default_factory=list)
    """One line a fault; empty when the answer agrees."""

    def add(self, other: Comparison) -> None:
        """Count another comparison in."""
        self.steps += other.steps
        self.worst = max(self.worst, other.worst)
        self.faults.extend(other.faults)


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
    for token, value in wanted:
        if (found := given.get(int(token))) is None:
            continue
        off = abs(found - value)
        result.worst = max(result.worst, off)
        if off > tolerance:
            result.faults.append(
                f"{label}: log probability of token {int(token)} is {found:.3f}, golden {value:.3f}, "
                f"tolerance {tolerance:.3f}"
            )
            return False
    if int(wanted[0][0]) not in given:
        result.faults.append(f"{label}: the golden first choice {int(wanted[0][0])} is not among the answer's")
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
        result.worst = max(result.worst, abs(found - expected))
        if abs(found - expected) > tolerance:
            result.faults.append(
                f"{label} token {place}: log probability {found:.3f}, golden {expected:.3f}, tolerance {tolerance:.3f}"
            )
            return result
    return result
