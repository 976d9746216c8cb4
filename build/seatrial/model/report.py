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


class OpenRequest(Frozen):
    """A request that was under way when a limit was passed, or that the server broke off."""

    method: str
    path: str
    body: str = ""
    """Shortened."""
    seconds: float
    ended: str = ""
    """How it ended; empty while it was still open."""


class Ending(Frozen):
    """How a server's first process ended."""

    exit_code: int
    signal: str = ""
    oom_killed: bool | None = None
    """None where nobody can say."""
    core_pattern: str = ""
    """Where this machine's kernel puts core files."""


class Evidence(Frozen):
    """What is kept when something went wrong, per server."""

    server: str
    log_tail: str
    stacks: str = ""
    """Per process of the server: state, what it waits for, its stack."""
    breaches: tuple[str, ...] = ()
    """Limits that were passed, each with its case."""
    requests: tuple[OpenRequest, ...] = ()
    device: str = ""
    """What the device's own tool said, or that there is none."""
    ending: Ending | None = None
    gone: tuple[str, ...] = ()
    """Processes that were there when the case began and had ended by then."""


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
    facts: dict[str, str] = Field(default_factory=dict)
    """What the run ran on and with: machine, engine, image, fixes."""

    @property
    def bad(self) -> tuple[Case, ...]:
        """Return the cases that neither passed nor are declared as not supported."""
        fine = (Outcome.PASSED, Outcome.NOT_SUPPORTED)
        return tuple(case for case in self.cases if case.outcome not in fine)
