"""The verb `smoke`: words that fit together, two images that can be compared, and what stays of a run."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seatrial.cli import smoke as verb
from seatrial.cli.main import main
from seatrial.flow import smoke as flow
from seatrial.flow.project import Project
from seatrial.flow.smoke import Asked, compare_images, fixes_of, say_comparison
from seatrial.model.errors import UsageError
from seatrial.model.labels import BASE_VERSION_LABEL, FIXES_LABEL, PLATFORM_LABEL
from seatrial.model.report import Report
from seatrial.ports.board import Board
from seatrial.ports.console import Console
from seatrial.ports.images import ImageFacts
from tests.unit.test_comparison import WITH, WITHOUT, report_of

ROOT = Path(__file__).parents[2]
FIXES = "gdn-state-dtype=applies,gdn-one-token-prompt=applies"
RED = {"qwen3-next-float16/serves-or-refuses": "failed"}
CASES = ("qwen3-next/one-token", "qwen3-next-float16/serves-or-refuses")


def facts(digest: str, **labels: str) -> ImageFacts:
    words = {BASE_VERSION_LABEL: "0.28.0", PLATFORM_LABEL: "cpu", **labels}
    return ImageFacts(
        digest=digest,
        user="",
        entrypoint=(),
        command=(),
        environment={},
        labels={name: value for name, value in words.items() if value},
        health=(),
        stop_signal="",
        working_dir="",
        machine="amd64",
        history=(),
        layer_bytes=0,
    )


class Engine:
    """Holds two images."""

    def __init__(self, mine: ImageFacts, theirs: ImageFacts) -> None:
        self.held = {"mine": mine, "theirs": theirs}

    def facts(self, image: str) -> ImageFacts:
        if image not in self.held:
            raise UsageError(f"the engine holds no image {image}", do="correct it")
        return self.held[image]


GOOD = Engine(facts(WITH, **{FIXES_LABEL: FIXES}), facts(WITHOUT, **{FIXES_LABEL: "none"}))


def run_of(outcomes: dict[str, dict[str, str]]) -> Any:
    """Return a stand-in for the run: these cases are not passed, by digest."""

    def run(root: Path, digest: str, **_: Any) -> Report:
        mine = outcomes.get(digest, {})
        cases = [{"name": name, "outcome": mine.get(name, "passed"), "reason": "why", "seconds": 1.5} for name in CASES]
        return report_of(digest, cases=cases)

    return run


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A checkout that reads this one's fixes and writes elsewhere."""
    for name in ("patches", "smoke_tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return Project(tmp_path)


def test_two_images_are_run_alike_and_all_is_kept(monkeypatch: pytest.MonkeyPatch, project: Project) -> None:
    monkeypatch.setattr(flow, "run_smoke", run_of({WITHOUT: RED}))
    out = io.StringIO()
    console = Console(out=out, ci=False)
    found = compare_images(project, Asked(image="mine"), "theirs", GOOD, console)  # type: ignore[arg-type]
    say_comparison(found, console)
    text = out.getvalue()
    assert "load-bearing  gdn-state-dtype dtype-refused-late: qwen3-next-float16/serves-or-refuses is red" in text
    assert "not-shown     gdn-one-token-prompt first-token-as-decode: not shown on this host" in text
    assert "not-asked     gdn-state-dtype state-dtype-default" in text
    folder = project.out("0.28.0", "cpu") / "reports" / ("a" * 12)
    stem = f"compare-basic-{'b' * 12}"
    names = {f"{stem}{part}.{kind}" for part in ("", "-with", "-without") for kind in ("json", "html")}
    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / f"{stem}.json").read_text())["schema"] == "seatrial.comparison/1"
    assert verb._judge_both(found) == 0


def test_an_image_that_is_red_with_its_fixes_is_a_finding(monkeypatch: pytest.MonkeyPatch, project: Project) -> None:
    monkeypatch.setattr(flow, "run_smoke", run_of({WITHOUT: RED, WITH: RED}))
    found = compare_images(project, Asked(image="mine"), "theirs", GOOD, Console(out=io.StringIO(), ci=False))  # type: ignore[arg-type]
    with pytest.raises(verb.FindingsError, match="red in 1 places") as caught:
        verb._judge_both(found)
    assert caught.value.why == "gdn-state-dtype dtype-refused-late"


@pytest.mark.parametrize(
    ("engine", "other", "says"),
    [
        (GOOD, "gone", "holds no image gone"),
        (GOOD, "mine", "compared with itself"),
        (Engine(GOOD.held["mine"], facts(WITHOUT, **{BASE_VERSION_LABEL: "0.32.0"})), "theirs", "another base"),
        (Engine(GOOD.held["mine"], facts(WITHOUT, **{PLATFORM_LABEL: "xpu"})), "theirs", "another platform"),
        (Engine(GOOD.held["mine"], facts(WITHOUT, **{FIXES_LABEL: FIXES})), "theirs", "has all fixes"),
        (Engine(facts(WITH, **{BASE_VERSION_LABEL: ""}), GOOD.held["theirs"]), "theirs", "does not say which base"),
    ],
)
def test_images_that_cannot_be_compared_start_nothing(project: Project, engine: Engine, other: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        compare_images(project, Asked(image="mine"), other, engine, Console(out=io.StringIO(), ci=False))  # type: ignore[arg-type]
    if "does not say" not in says:
        assert "nox -s build-cpu -- --base 0.28.0 --without" in caught.value.do or "another base" not in says


def test_the_way_to_an_image_without_fixes_is_said(project: Project) -> None:
    with pytest.raises(UsageError) as caught:
        compare_images(project, Asked(image="mine"), "gone", GOOD, Console(out=io.StringIO(), ci=False))  # type: ignore[arg-type]
    way = "nox -s build-cpu -- --base 0.28.0 --without gdn-state-dtype --without gdn-one-token-prompt"
    assert way in caught.value.do


def test_an_image_of_somebody_else_has_no_fixes() -> None:
    assert fixes_of(facts(WITH)) == ()
    assert fixes_of(facts(WITH, **{FIXES_LABEL: FIXES})) == ("gdn-state-dtype", "gdn-one-token-prompt")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to try"),
        (["x", "--venv", "y"], "too much"),
        (["--venv", "y", "--compare", "z", "--platform", "cpu"], "takes two images"),
        (["--venv", "y", "--platform", "tpu"], "knows no platform 'tpu'"),
        (["--venv", "y"], "no platform is given"),
        (["--venv", "y", "--platform", "cpu", "--profile", "deep"], "no smoke profile 'deep'"),
        (["--venv", "y", "--html", "no/where/x.html"], "its folder does not exist"),
        (["--venv"], "expected one argument"),
    ],
)
def test_words_that_do_not_fit_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Sequence[str], says: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(verb, "connect", lambda: None)
    assert main(["smoke", *words]) == 2
    out = capsys.readouterr().out
    assert out.startswith("seatrial: usage: ")
    assert says in out


@pytest.mark.parametrize(("outcome", "code"), [("passed", 0), ("failed", 1), ("error", 1), ("not-run", 12)])
def test_a_run_is_kept_and_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, outcome: str, code: int
) -> None:
    monkeypatch.chdir(ROOT)
    seen: list[Any] = []

    def run(root: Path, words: Sequence[str], **more: Any) -> Report:
        seen.append((list(words), more["names"]))
        return report_of(WITH, dict.fromkeys(("a/ready", "a/chat", "b/serves-or-refuses"), outcome))

    monkeypatch.setattr(flow, "run_suite", run)
    files = [f"--report={tmp_path / 'r.json'}", "--html", str(tmp_path / "r.html")]
    ended = main(["smoke", "--venv", "y", "--platform", "cpu", *files, "-k", "chat", "--json"])
    assert (ended == 0) is (code == 0)
    if code == 1:
        assert ended == 1
    words, names = seen[0]
    assert words == ["--venv", "y", "--platform", "cpu", "--profile", "basic", "-k", "chat"]
    assert "qwen3/ready" in names
    assert json.loads((tmp_path / "r.json").read_text())["subject"] == WITH
    assert "<!doctype html>" in (tmp_path / "r.html").read_text()
    assert json.loads(capsys.readouterr().out)["subject"] == WITH


class Terminal(io.StringIO):
    """Says that it can be redrawn."""

    def isatty(self) -> bool:
        return True


def test_the_board_moves_on_a_terminal_only() -> None:
    event = {"name": "a/ready", "outcome": "passed", "seconds": 31.5}
    bad = {"name": "a/chat", "outcome": "failed", "seconds": 2.0, "reason": "HTTP \x1b[2J500", "log_line": "E: why"}
    for stream in (Terminal(), io.StringIO()):
        board = Board(["a/ready", "a/chat", "a/end"], Console(out=stream, ci=False))
        board.draw()
        board.take(event)
        board.take(bad)
        board.draw()
        text = stream.getvalue()
        assert "1 of 3  passed        a/ready  31.5 s" in text
        assert "log: E: why" in text
        assert "\x1b[2J" not in text
        assert ("a/end 0 s" in text) is stream.isatty()
        assert ("\r\x1b[2K" in text) is stream.isatty()


def test_the_moving_line_says_what_is_under_way() -> None:
    board = Board(["a/ready", "a/chat"], Console(out=io.StringIO(), ci=False))
    began = board._begun
    assert board.line(began + 7.2) == "    0 of 2  a/ready 7 s  (none ended; 7 s in all)"
    board.take({"name": "a/ready", "outcome": "passed"})
    board.take({"name": "a/chat", "outcome": "not-run", "reason": "dead"})
    assert "2 of 2  ending  (1 passed, 1 not-run;" in board.line(began + 9)


def test_a_reason_that_many_cases_share_is_said_once() -> None:
    said = io.StringIO()
    board = Board(["a", "b", "c", "d"], Console(out=said, ci=False))
    for name, reason in (("a", "no operator"), ("b", "no operator"), ("c", "no memory"), ("d", "no operator")):
        board.take({"name": name, "outcome": "not-supported", "reason": reason})
    assert [line.strip() for line in said.getvalue().splitlines() if "no " in line] == [
        "no operator",
        "no memory",
        "no operator",
    ]
