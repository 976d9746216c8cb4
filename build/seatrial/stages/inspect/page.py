"""The tables of checks as Markdown, for the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from seatrial.stages.inspect.allowances import COMMON
from seatrial.stages.inspect.native import PRELOADS
from seatrial.stages.inspect.subject import Check
from seatrial.stages.inspect.table import CHECKS
from seatrial.stages.inspect.wheel import WHEEL_CHECKS


def tables() -> dict[str, str]:
    """Return each generated table of `docs/inspect.md` by its name."""
    allowed = [f"| {one.check} | `{one.pattern}` | {one.why} |" for one in COMMON]
    loaded = [f"| {one.provider} | `{one.modules}` | {one.why} |" for one in PRELOADS]
    return {
        "image-checks": _checks(CHECKS),
        "wheel-checks": _checks(WHEEL_CHECKS),
        "allowances": "\n".join(["| check | pattern | why |", "| --- | --- | --- |", *allowed]),
        "preloads": "\n".join(["| provider | loads | why others find it |", "| --- | --- | --- |", *loaded]),
    }


def _checks(rows: Iterable[Check[Any]]) -> str:
    lines = ["| check | what holds | compares | when it does not |", "| --- | --- | --- | --- |"]
    for row in rows:
        compares = "yes" if row.needs_expectation else ""
        lines.append(f"| {row.name} | {row.what} | {compares} | {row.advice} |")
    return "\n".join(lines)
