"""What the terminal shows, and to whom."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from seatrial.model.errors import RefusedError
from seatrial.ports.console import Console


def test_an_error_says_what_why_and_what_next() -> None:
    out = io.StringIO()
    Console(out=out, ci=False).error(RefusedError("no name", why="a case failed", do="mend it"))
    assert out.getvalue().splitlines() == ["seatrial: refused: no name", "  why: a case failed", "  do:  mend it"]


def test_in_ci_steps_fold_and_errors_are_annotations() -> None:
    out = io.StringIO()
    console = Console(out=out, ci=True)
    with console.step("smoke"):
        console.line("inside")
    console.error(RefusedError("no name"))
    text = out.getvalue()
    assert text.startswith("::group::smoke\ninside\n::endgroup::\n")
    assert "::error title=seatrial refused::no name\n" in text


def test_a_fallback_is_announced_each_time_and_kept_once() -> None:
    out = io.StringIO()
    console = Console(out=out, ci=False)
    console.fallback("second choice")
    console.fallback("second choice")
    assert console.fallbacks == ["second choice"]
    assert out.getvalue().count("second choice") == 2


def test_json_goes_to_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(as_json=True)
    console.line("for people [not markup]")
    console.result({"b": 1, "a": [2]})
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": [2], "b": 1}
    assert captured.err == "for people [not markup]\n"


def test_json_is_one_document_also_when_findings_follow(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(as_json=True)
    console.result({"findings": [1]})
    console.result({"error": {"label": "findings"}})
    assert json.loads(capsys.readouterr().out) == {"findings": [1]}


def test_a_reader_that_went_away_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        console = Console(out=stream, ci=False)
        console.line("nobody reads this")
        console.line("nor this")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        Console(as_json=True).result({"a": 1})


def test_what_a_stranger_wrote_does_not_command_the_terminal() -> None:
    out = io.StringIO()
    Console(out=out, ci=False).line("vllm/\x1b[2J\x9b2Jred\r.py\tand\nmore")
    assert out.getvalue() == "vllm/\\x1b[2J\\x9b2Jred\\x0d.py\tand\nmore\n".expandtabs()


def test_a_character_that_the_encoding_lacks_is_shown_as_its_number() -> None:
    kept = io.BytesIO()
    out = io.TextIOWrapper(kept, encoding="ascii")
    Console(out=out, ci=False).line("an é and \udcff")
    out.flush()
    assert kept.getvalue() == b"an \\xe9 and \\udcff\n"


def test_without_a_terminal_progress_writes_no_control_codes() -> None:
    out = io.StringIO()
    with Console(out=out, ci=False).progress("fetch", 10) as bar:
        bar.advance(10)
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()
