"""Write the tables of `docs/faults.md` from the kept results: `python -m tests.faults.page [--check]`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.clean import CLEAN
from tests.faults.model import Fault
from tests.faults.table import FAULTS, NOT_SEEDED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"
RESULTS = Path(__file__).with_name("results.json")
BEGIN = "<!-- made by `python -m tests.faults.page`: {name} -->"
END = "<!-- end: {name} -->"
SENTENCE = 150
"""Letters of a refusal that the table shows."""


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Return each table of the page by its name."""
    return {
        "score": _score(results),
        "faults": _faults(results["faults"]),
        "open": _open(results["faults"]),
        "clean": _clean(results["clean"]),
        "not-seeded": "\n".join(
            [
                "| row | why not yet |",
                "| --- | --- |",
                *(f"| {row} | {why} |" for row, why in sorted(NOT_SEEDED.items())),
            ]
        ),
    }


def page(text: str, results: Mapping[str, Any]) -> str:
    """Return the page's text with the tables of these results."""
    for name, body in tables(results).items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{PAGE.name} does not hold the marks of the table {name} once")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{body}\n{end}{rest.split(end)[1]}"
    return text


def _score(results: Mapping[str, Any]) -> str:
    numbers = results["score"]
    images = ", ".join(f"{base} `{digest[7:19]}`" for base, digest in sorted(results["images"].items()))
    days = sorted({row["date"] for row in (*results["faults"].values(), *results["clean"].values())})
    return "\n".join(
        [
            "| caught / seeded | false alarms / clean | images | tried on |",
            "| --- | --- | --- | --- |",
            f"| **{numbers['caught']} / {numbers['seeded']}** | **{numbers['false_alarms']} / {numbers['clean']}** "
            f"| {images} | {' to '.join(dict.fromkeys((days[0], days[-1])))} |",
        ]
    )


def _faults(rows: Mapping[str, Any]) -> str:
    lines = [
        "| row | fault | what was broken | refused by | in these words | s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for fault in sorted(FAULTS, key=lambda one: (one.row or 99, one.name)):
        row = rows.get(fault.name)
        said, by, seconds = "*not tried yet*", "", ""
        if row is not None:
            said, by = (_short(row["said"]), f"`{fault.check}`") if row["caught"] else ("", "**nothing**")
            seconds = f"{row['seconds']:.0f}"
        lines.append(f"| {fault.row or '-'} | {fault.name} | {_what(fault)} | {by} | {said} | {seconds} |")
    return "\n".join(lines)


def _what(fault: Fault) -> str:
    return fault.what + (f" (not real: {fault.fake})" if fault.fake else "")


def _open(rows: Mapping[str, Any]) -> str:
    lost = [fault for fault in FAULTS if fault.name in rows and not rows[fault.name]["caught"]]
    if not lost:
        return "None: every seeded fault is refused."
    lines = ["| row | fault | why nothing sees it |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {one.row or '-'} | {one.name} | {one.open or 'not known'} |" for one in lost)])


def _clean(rows: Mapping[str, Any]) -> str:
    lines = ["| image | what it is | base | verdict | s |", "| --- | --- | --- | --- | --- |"]
    for clean in CLEAN:
        row = rows.get(clean.name)
        verdict = "*not tried yet*" if row is None else "**refused**" if row["by"] or row["error"] else "allowed"
        seconds = "" if row is None else f"{row['seconds']:.0f}"
        lines.append(f"| {clean.name} | {clean.what} | {clean.base} | {verdict} | {seconds} |")
    return "\n".join(lines)


def _short(said: str) -> str:
    """Return a refusal as a table can show it: its own words, without digests, ports and what differs by machine."""
    text = re.sub(r"^(?:inspect|smoke) \S+: \S+ (?:failed|was not run|could not be carried out): ", "", said)
    text = re.sub(r"(?:sha256:)?[0-9a-f]{40,64}", "...", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "REGISTRY", text)
    text = re.sub(r"seatrial-faults-[0-9a-f]+", "REPOSITORY", text)
    text = re.sub(r"/opt/vllm/lib/python3\.\d+/site-packages/", "", text).replace("|", "\\|")
    return text if len(text) <= SENTENCE else text[:SENTENCE].rsplit(" ", 1)[0] + " ..."


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or (--check) say whether it is up to date."""
    parser = argparse.ArgumentParser(prog="page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 when the page is stale")
    options = parser.parse_args(argv)
    text = PAGE.read_text(encoding="utf-8")
    made = page(text, json.loads(RESULTS.read_text(encoding="utf-8")))
    if options.check:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    sys.stdout.write(f"{PAGE.name} is written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
