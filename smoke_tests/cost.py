"""Says what profiles cost, from reports of their runs: `python -m smoke_tests.cost REPORT...` prints a Markdown table.

Waiting for servers is told apart from asking them, for that is where the time goes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STARTS = ("ready", "serves-or-refuses")
"""Cases that wait for a server to start."""

HEAD = (
    "| profile | base | on | servers | cases | in all | waiting for servers | asking them | slowest case that asks |",
    "|--|--|--|--|--|--|--|--|--|",
)


def row(report: Mapping[str, Any]) -> str:
    """Return the line of one report; seconds."""
    tried = [case for case in report["cases"] if case["outcome"] not in ("not-supported", "not-run")]
    starts = [case for case in tried if case["name"].rpartition("/")[2] in STARTS]
    asking = [case for case in tried if case not in starts]
    slowest = max(asking, key=lambda case: case["seconds"], default={"name": "none", "seconds": 0.0})
    waited = sum(case["seconds"] for case in starts)
    load = report.get("facts", {}).get("load at the start", "").split(" ")[0]
    where = f"{report['device']['name']}, {report['subject_kind']}" + (f", load {load} before" if load else "")
    return (
        f"| {report['profile']} | {report['base']} | {where} | {len(starts)} | {len(tried)} | "
        f"{report['seconds']:.0f} s | {waited:.0f} s | {sum(case['seconds'] for case in asking):.1f} s | "
        f"{slowest['name']}, {slowest['seconds']:.1f} s |"
    )


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of some reports, by profile and then by base."""
    ordered = sorted(reports, key=lambda report: (report["profile"], report["base"], report["seconds"]))
    return "\n".join([*HEAD, *(row(report) for report in ordered)])


def main(paths: Sequence[str]) -> int:
    """Print the table; exit status 2 when a file is no report of this suite."""
    reports = []
    for path in paths:
        try:
            report = json.loads(Path(path).read_text(encoding="utf-8"))
            row(report)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.stderr.write(f"{path} is no report of a run: {type(error).__name__}: {error}\n")
            return 2
        reports.append(report)
    sys.stdout.write(table(reports) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
