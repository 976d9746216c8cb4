"""The bench runner: limits that are broken, missing or kept, and names."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from seatrial.model.errors import BuildError, UsageError
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import open_index
from tests.bench import run as runner
from tests.bench.frame import Bed, Bench, Limit, Numbers, failed, lap, measure


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path, tmp_path, Cache(tmp_path), open_index(), Console(out=io.StringIO()))


def bench(numbers: Numbers, *limits: Limit) -> Bench:
    return Bench("x.y", "what", lambda bed: numbers, limits)


@pytest.mark.parametrize(
    ("limit", "broken"),
    [
        (Limit("ratio", "at_least", 20), False),
        (Limit("ratio", "at_least", 26), True),
        (Limit("ratio", "at_most", 25), False),
        (Limit("ratio", "at_most", 24.9), True),
        (Limit("other", "at_most", 100), True),
    ],
)
def test_limits(bed: Bed, limit: Limit, broken: bool) -> None:
    row = measure(bench({"ratio": 25.0}, limit), bed)
    assert failed(row) is broken
    assert row["limits"] == [{"number": limit.number, limit.bound: limit.value, "met": not broken}]


def test_a_bench_that_fails_meets_nothing(bed: Bed) -> None:
    def broken(_: Bed) -> Numbers:
        raise BuildError("it broke", why="because")

    row = measure(Bench("x", "what", broken, (Limit("ratio", "at_most", 1),)), bed)
    assert row["error"] == "it broke; because"
    assert failed(row)
    assert failed(measure(Bench("x", "what", broken), bed))


def test_laps_are_timed() -> None:
    with lap() as taken:
        sum(range(200_000))
    assert taken.wall > 0


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(Bench(name, "", lambda bed: {}) for name in ("a.b", "a.b_c", "d.e"))
    monkeypatch.setattr(runner, "BENCHES", rows)
    assert [each.name for each in runner.chosen(["a.b"])] == ["a.b"]
    assert [each.name for each in runner.chosen(["a"])] == ["a.b", "a.b_c"]
    assert runner.chosen([]) == rows
    with pytest.raises(UsageError, match=r"no bench 'a\.x'"):
        runner.chosen(["d", "a.x"])


def test_the_result_is_one_json_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen: list[Path] = []

    def look(bed: Bed) -> Numbers:
        seen.append(bed.scratch)
        assert bed.scratch.is_dir()
        return {"ratio": 2.0}

    rows = (
        Bench("good", "", look, (Limit("ratio", "at_least", 1),)),
        Bench("bad", "", look, (Limit("no", "at_most", 1),)),
    )
    monkeypatch.setattr(runner, "BENCHES", rows)
    assert runner.main(["--only", "good", "--scratch", str(tmp_path), "--out", str(tmp_path / "r.json")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["benches"]["good"]["numbers"] == {"ratio": 2.0}
    assert json.loads((tmp_path / "r.json").read_text()) == printed
    assert runner.main(["--scratch", str(tmp_path)]) == 1
    assert runner.main(["--only", "none"]) == 2
    assert not any(path.exists() for path in seen)
    assert "there is no bench 'none'" in capsys.readouterr().err
