"""The documentation's tables are the tables of the code."""

from __future__ import annotations

import re
from pathlib import Path

from seatrial.stages.inspect.page import tables

PAGE = Path(__file__).parents[2] / "docs" / "inspect.md"


def test_the_page_holds_the_tables_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = dict(re.findall(r"<!-- made by `seatrial docs`: (\S+) -->\n(.*?)\n?<!-- end: \1 -->", text, re.DOTALL))
    assert found == tables()
