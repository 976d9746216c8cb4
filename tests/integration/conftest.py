"""Fixtures that several files of integration tests share."""

from __future__ import annotations

from tests.smokelab import suite, trial, venv

__all__ = ["suite", "trial", "venv"]
