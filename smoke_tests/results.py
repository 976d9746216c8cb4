"""Collects how cases ended and writes the report of a run.

The report's shape is `seatrial.report/1`, as seatrial's own model of reports has it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass
class Results:
    """What a run saw so far."""

    expected: Sequence[str]
    events: Path | None = None
    """File to which one JSON line a finished case is appended."""
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    evidence: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)

    def add(self, name: str, outcome: str, seconds: float, **more: Any) -> None:
        """Note how a case ended; `more` holds reason, log_line and measured."""
        case = {"name": name, "outcome": outcome, "seconds": round(seconds, 3), **more}
        self.cases[name] = case
        if self.events is not None:
            with self.events.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(case) + "\n")

    def keep(self, server: str, log_tail: str, stacks: str, *, breach: str = "", **more: Any) -> None:
        """Keep the log's end of a server; what was taken at the first trouble stays, later stacks are added.

        Args:
            breach: the limit that was passed, in words.
            more: requests, device, ending, gone.
        """
        old = self.evidence.get(server, {})
        taken = "\n\n".join(text for text in (old.get("stacks", ""), stacks) if text)
        kept: dict[str, Any] = {"server": server, "log_tail": log_tail, "stacks": taken}
        kept["breaches"] = [*old.get("breaches", ()), *([breach] if breach else ())]
        self.evidence[server] = {**kept, **{name: old.get(name) or value for name, value in more.items()}}

    def report(self, *, profile: str, subject: str, subject_kind: str, platform: str, base: str, device: Any) -> Any:
        """Return the report; an expected case that never came to its turn is not run."""
        for name in self.expected:
            if name not in self.cases:
                self.cases[name] = {"name": name, "outcome": "not-run", "reason": "the run ended before"}
        extra = [name for name in self.cases if name not in self.expected]
        return {
            "schema": "seatrial.report/1",
            "kind": "smoke",
            "profile": profile,
            "subject": subject,
            "subject_kind": subject_kind,
            "platform": platform,
            "base": base,
            "device": device,
            "started": self.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seconds": round(time.monotonic() - self.clock, 3),
            "cases": [self.cases[name] for name in [*self.expected, *extra]],
            "evidence": list(self.evidence.values()),
            "facts": self.facts,
        }


def write_report(path: Path, report: Any) -> None:
    """Write a report so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(report, stream, indent=1)
            stream.write("\n")
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
