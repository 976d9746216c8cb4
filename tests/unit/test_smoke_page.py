"""Pages of reports: everything is there, nothing of a log is obeyed, nothing is fetched."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial.flow import trial
from seatrial.model.report import Report
from seatrial.model.values import parse_data, parse_json
from seatrial.stages.smoke_page import report_page
from tests.unit.test_comparison import WITH, report_of

HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m \u202e &amp; \x00"

EVIDENCE = {
    "server": f"qwen3 {HOSTILE}",
    "log_tail": f"line one\n{HOSTILE}\nlast line",
    "stacks": f"== process 7: vllm {HOSTILE}",
    "breaches": [f"a/chat: not answered within 4 s {HOSTILE}"],
    "requests": [{"method": "POST", "path": f"/v1/{HOSTILE}", "body": HOSTILE, "seconds": 4.0, "ended": HOSTILE}],
    "device": HOSTILE,
    "ending": {"exit_code": 137, "signal": "SIGKILL", "oom_killed": True, "core_pattern": HOSTILE},
    "gone": [f"9 worker {HOSTILE}"],
}


class Seen(HTMLParser):
    """Collects tags, and checks that they are closed in order."""

    EMPTY = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Seen:
    seen = Seen()
    seen.feed(page)
    seen.close()
    assert seen.open == []
    return seen


def hostile() -> Report:
    case = {
        "name": f"a/{HOSTILE}",
        "outcome": "failed",
        "seconds": 12.25,
        "reason": HOSTILE,
        "log_line": HOSTILE,
        "measured": {HOSTILE: HOSTILE},
    }
    facts = {HOSTILE: HOSTILE}
    return report_of(WITH, cases=[case], evidence=[EVIDENCE], facts=facts, base=HOSTILE, platform=HOSTILE)


def test_what_a_server_wrote_stays_text() -> None:
    seen = read(report_page(hostile()))
    assert {tag for tag, _ in seen.tags} & {"script", "img", "link", "iframe", "a"} == set()
    assert all(
        name in ("class", "style", "open", "lang", "charset", "name", "content", "http-equiv")
        for _, attributes in seen.tags
        for name in attributes
    )
    assert "<script>alert(1)</script>" in seen.text
    assert "\\x1b[31m \\x202e" in seen.text
    assert not re.search("[\x00-\x08\x1b\u202e]", seen.text)


def test_nothing_comes_from_elsewhere() -> None:
    page = report_page(hostile())
    assert "default-src 'none'" in page
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_all_that_was_kept_is_on_the_page() -> None:
    text = read(report_page(hostile())).text
    for said in (
        "limit passed",
        "137, SIGKILL, killed for memory",
        "requests under way (1)",
        "after 4.0 s",
        "process ended on its way",
        "line one",
        "== process 7",
        "not in order",
        "12.2 s",
        WITH,
    ):
        assert said in text


@pytest.mark.parametrize(
    ("more", "says"),
    [({}, "nothing to object"), ({"cases": []}, "not in order")],
)
def test_the_sum_says_whether_all_is_well(more: dict[str, Any], says: str) -> None:
    assert says in read(report_page(report_of(WITH, **more))).text


def test_bars_are_shares_of_the_longest_case() -> None:
    cases = [{"name": f"a/{n}", "outcome": "passed", "seconds": seconds} for n, seconds in enumerate((40.0, 10.0, 0.0))]
    page = report_page(report_of(WITH, cases=cases))
    assert re.findall(r"width:([\d.]+)%", page) == ["100.0", "25.0", "0.0"]
    assert "50.0 s" in page


def test_reports_of_before_still_parse() -> None:
    """Reports that were written without the newer fields are read as they are."""
    old = {
        "schema": "seatrial.report/1", "kind": "smoke", "profile": "basic", "subject": WITH, "subject_kind": "image",
        "platform": "cpu", "base": "0.28.0", "device": {"kind": "cpu", "name": "x", "rehearsed": False},
        "started": "2026-11-30T23:14:02Z", "seconds": 1.0,
        "cases": [{"name": "a/ready", "outcome": "failed", "seconds": 1.0, "reason": "r", "log_line": "l"}],
        "evidence": [{"server": "a", "log_tail": "t", "stacks": "s"}],
    }  # fmt: skip
    report = parse_json(Report, json.dumps(old), "report")
    assert (report.facts, report.evidence[0].requests, report.evidence[0].ending) == ({}, (), None)
    assert read(report_page(report)).text
    assert parse_data(Report, report.model_dump(mode="json", by_alias=True), "again") == report


def test_a_kept_report_has_its_page_beside_it(tmp_path: Path) -> None:
    left: list[Any] = []
    receipts = SimpleNamespace(leave=lambda *words: left.append(words))
    file = trial._keep(SimpleNamespace(out=tmp_path), receipts, "smoke-basic", {}, report_of(WITH))  # type: ignore[arg-type]
    assert file.path.with_suffix(".html").read_text() == report_page(file.report)
    assert len(left) == 1
