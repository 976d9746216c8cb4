"""The command line: words, one line an error, JSON, faults, and pages that are made from the parsers."""

from __future__ import annotations

import errno
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.cli import docs as docs_module
from seatrial.cli import main as main_module
from seatrial.cli.docs import exit_codes, pages, verb_page
from seatrial.cli.main import build_parser, main
from seatrial.cli.verb import Context, Verb
from seatrial.cli.verbs import VERBS
from seatrial.flow.project import Project
from seatrial.model.errors import ALL_ERRORS, CommandError, FindingsError, RefusedError, SeatrialError

HERE = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Work from the checkout, keep reports of faults here, and give the signal its handler back."""
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def verb_that(monkeypatch: pytest.MonkeyPatch, raises: BaseException) -> None:
    """Put a verb `try` in the place of all others; it raises what it is told to."""

    def run(context: Context, options: Any) -> int:
        raise raises

    monkeypatch.setattr(main_module, "VERBS", (Verb("try", "s", "d", lambda parser: None, run),))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "VERB"),
        (["bild"], "bild"),
        (["build"], "PLATFORM"),
        (["build", "cpu", "--fast"], "--fast"),
        (["build", "cpu", "--revision", "two"], "two"),
        (["build", "cpu", "--base-image", "guess"], "guess"),
        (["build", "cpu", "--base"], "--base"),
        (["check"], "PATH"),
        (["apply", "--out", "x"], "--platform"),
        (["lock-base"], "VERSION"),
        (["inspect", "a", "b"], "b"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert err == ""
    first, do = out.splitlines()
    assert first.startswith("seatrial: usage: ")
    assert said in first
    assert do.startswith("  do:  see: seatrial")
    assert do.endswith("--help")


def test_every_verb_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    everything = capsys.readouterr().out
    for verb in VERBS:
        assert verb.name in everything
        with pytest.raises(SystemExit, match="0"):
            build_parser().parse_args([verb.name, "--help"])
        assert "--json" in capsys.readouterr().out


def test_an_error_is_also_an_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "nothing", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "error": {
            "label": "usage",
            "what": "there is no platform 'nothing'",
            "why": json.loads(out)["error"]["why"],
            "do": "choose one of these",
        }
    }
    assert "cpu" in json.loads(out)["error"]["why"]
    assert err.startswith("seatrial: usage: there is no platform 'nothing'\n")
    assert main(["build", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["label"] == "usage"


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_every_error_ends_with_its_own_code(
    kind: type[SeatrialError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verb_that(monkeypatch, kind("it is so", why="because", do="do that"))
    assert main(["try"]) == kind.code
    assert capsys.readouterr().out == f"seatrial: {kind.label}: it is so\n  why: because\n  do:  do that\n"


def test_a_failed_command_shows_the_end_of_its_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verb_that(monkeypatch, CommandError("git ended with status 1", output="one\ntwo"))
    assert main(["try"]) == 14
    assert capsys.readouterr().out.endswith("    | one\n    | two\n")


def test_codes_and_labels_are_distinct() -> None:
    assert len({error.code for error in ALL_ERRORS}) == len(ALL_ERRORS)
    assert len({error.label for error in ALL_ERRORS}) == len(ALL_ERRORS)
    assert set(SeatrialError.__subclasses__()) | {SeatrialError} == set(ALL_ERRORS)


@pytest.mark.parametrize("fault", [KeyError("x"), ValueError("one\ntwo"), AssertionError(), OSError(errno.EIO, "bad")])
def test_a_fault_of_our_own_is_one_line_and_a_file(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    verb_that(monkeypatch, fault)
    assert main(["try"]) == 70
    out, err = capsys.readouterr()
    assert err == ""
    assert "Traceback" not in out
    assert out.startswith(f"seatrial: internal: {type(fault).__name__}")
    (kept,) = tmp_path.glob("seatrial-fault-*.txt")
    assert out.endswith(f"  do:  report it with {kept}\n")
    assert "Traceback" in kept.read_text()


def test_a_fault_that_cannot_be_kept_is_still_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    verb_that(monkeypatch, ValueError("odd"))
    assert main(["try"]) == 70
    assert capsys.readouterr().out.splitlines()[0] == "seatrial: internal: ValueError: odd"


@pytest.mark.parametrize(
    "number",
    [
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EACCES,
        errno.EROFS,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    ],
)
def test_a_full_or_closed_disk_is_no_fault(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    verb_that(monkeypatch, OSError(number, "no", "/some/path"))
    assert main(["try"]) == 12
    out = capsys.readouterr().out
    assert "/some/path" in out
    assert "  do:  " in out
    assert not list(tmp_path.iterdir())


def test_a_full_disk_under_stdout_is_said_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        verb_that(monkeypatch, OSError(errno.ENOSPC, "no", "/some/path"))
        assert main(["try"]) == 12
    assert capsys.readouterr().err.startswith("seatrial: disk: no room left on the disk: ")


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    verb_that(monkeypatch, KeyboardInterrupt())
    assert main(["try"]) == 130
    assert "run the same again: finished stages are kept" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_in_ci_an_error_is_an_annotation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    verb_that(monkeypatch, RefusedError("no name", why="a case failed", do="mend it"))
    assert main(["try"]) == 3
    assert "::error title=seatrial refused::no name; a case failed; mend it\n" in capsys.readouterr().out


def test_the_committed_pages_are_those_of_the_code() -> None:
    made = pages(Project(HERE), VERBS)
    assert {f"docs/verbs/{verb.name}.md" for verb in VERBS} < set(made)
    stale = [name for name, text in made.items() if (HERE / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run: seatrial docs"
    committed = {f"docs/verbs/{path.name}" for path in (HERE / "docs" / "verbs").iterdir()}
    assert committed <= set(made), "a page of a verb that is gone"


def test_every_verb_option_and_error_is_in_the_pages() -> None:
    index = (HERE / "docs" / "verbs" / "README.md").read_text(encoding="utf-8")
    for error in ALL_ERRORS:
        assert f"| {error.code} | {error.label} |" in exit_codes()
        assert f"| {error.code} | {error.label} |" in index
    for verb in VERBS:
        assert f"[{verb.name}]({verb.name}.md)" in index
        page = verb_page(verb)
        assert verb.description in page
        parser = main_module.Parser(add_help=False)
        verb.arguments(parser)
        for action in parser._actions:
            assert action.help, f"{verb.name} {action.dest} says nothing of itself"
            for word in action.option_strings or [str(action.metavar or action.dest)]:
                assert word in page


def test_stale_pages_are_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in pages(Project(HERE), VERBS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((HERE / name).read_bytes())
    for folder in ("images", "build/bases"):
        for path in (HERE / folder).glob("*.toml"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    page = tmp_path / "docs/verbs/build.md"
    page.write_text(page.read_text() + "by hand\n")
    context = Context(Project(tmp_path), main_module.Console())
    check = build_parser().parse_args(["docs", "--check"])
    with pytest.raises(FindingsError, match="1 generated pages are stale"):
        docs_module.run(context, check, VERBS)
    assert docs_module.run(context, build_parser().parse_args(["docs"]), VERBS) == 0
    assert page.read_bytes() == (HERE / "docs/verbs/build.md").read_bytes()
    assert docs_module.run(context, check, VERBS) == 0
    assert "every page is up to date" in capsys.readouterr().out
