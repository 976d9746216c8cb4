"""The table of costs is made from reports, and says no when it is given something else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.test_comparison import WITH, report_of

sys.path.insert(0, str(Path(__file__).parents[2]))

from smoke_tests.cost import HEAD, main


def test_waiting_and_asking_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [
        {"name": "a/ready", "outcome": "passed", "seconds": 30.0},
        {"name": "a/chat", "outcome": "passed", "seconds": 1.25},
        {"name": "a/end", "outcome": "failed", "seconds": 2.5},
        {"name": "a/tools", "outcome": "not-supported", "seconds": 99.0},
        {"name": "b/serves-or-refuses", "outcome": "passed", "seconds": 25.0},
    ]
    paths = []
    for name, more in (
        ("one", {"base": "0.28.0"}),
        ("two", {"base": "0.15.1", "facts": {"load at the start": "3 2 1"}}),
    ):
        report = report_of(WITH, cases=cases, **more)
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(report.model_dump(mode="json", by_alias=True)))
    assert main([str(path) for path in paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == list(HEAD)
    assert lines[2].startswith(
        "| basic | 0.15.1 | one, image, load 3 before | 2 | 4 | 90 s | 55 s | 3.8 s | a/end, 2.5 s |"
    )
    assert "| 0.28.0 | one, image |" in lines[3]


@pytest.mark.parametrize("text", ["", "[]", '{"cases": []}', '{"cases": [{"name": "a"}]}'])
def test_what_is_no_report_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_in_which_nothing_was_tried_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(report_of(WITH, cases=[]).model_dump(mode="json", by_alias=True)))
    assert main([str(path)]) == 0
