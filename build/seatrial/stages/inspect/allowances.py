"""Exceptions that hold for every vLLM image, each with its reason; a platform's own come with the expectation."""

from __future__ import annotations

from seatrial.model.expectation import Allowance

COMMON: tuple[Allowance, ...] = ()
"""Used ones are listed in the report, so that nothing is excused in silence."""
