"""Reports of inspect and smoke, each bound to one digest."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from seatrial.model.values import Frozen, ImageDigest


class Outcome(StrEnum):
    """How a case ended. Only *passed*, and a *not-supported* that the profile declares, satisfy the gate."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    NOT_SUPPORTED = "not-supported"
    NOT_RUN = "not-run"


class Case(Frozen):
    """One check and how it ended."""

    name: str
    outcome: Outcome
    seconds: float = Field(default=0.0, ge=0)
    reason: str = ""
    """What failed, or why the case is not supported; one line."""
    log_line: str = ""
    """The line of the server's log that says why, when there is one."""
    measured: dict[str, Any] = Field(default_factory=dict)


class Evidence(Frozen):
    """What is kept when something went wrong: the log's end and the stacks, per server."""

    server: str
    log_tail: str
    stacks: str = ""


class Device(Frozen):
    """The device a smoke run really used."""

    kind: str
    name: str
    rehearsed: bool = False
    """True when the run used a stand-in; the gate never names such a run."""


class Report(Frozen):
    """What inspect or smoke saw of one subject."""

    schema_id: Literal["seatrial.report/1"] = Field(default="seatrial.report/1", alias="schema")
    kind: Literal["inspect", "smoke"]
    profile: str
    """Smoke profile; `inspect` for an inspection."""
    subject: ImageDigest
    """Digest of what was looked at: image manifest, or `sha256:` of a wheel or of a venv's RECORD."""
    subject_kind: Literal["image", "wheel", "venv", "url"]
    platform: str
    base: str
    device: Device
    started: str
    """UTC, ISO 8601."""
    seconds: float
    cases: tuple[Case, ...]
    evidence: tuple[Evidence, ...] = ()

    @property
    def bad(self) -> tuple[Case, ...]:
        """Return the cases that neither passed nor are declared as not supported."""
        fine = (Outcome.PASSED, Outcome.NOT_SUPPORTED)
        return tuple(case for case in self.cases if case.outcome not in fine)
