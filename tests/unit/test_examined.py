"""What detectors said is remembered, and only as long as it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.model.errors import FixError
from seatrial.model.series import LoadedFix
from seatrial.ports.examined import examine
from seatrial.ports.trees import Source
from tests.fixlab import finding, fix, loaded, series, write_tree

FOUND = (finding(line=3), finding(part="two", line=4))


def silent() -> LoadedFix:
    """Return a fix whose detector must not be asked."""
    return loaded(fix(), found=map(FOUND.__getitem__, [9]))


def test_a_detector_is_asked_once_a_tree(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    first = examine(series(loaded(fix(), found=FOUND)), Source(tree), tmp_path / "cache")
    assert first["bug"].findings == FOUND
    assert examine(series(silent()), Source(tree), tmp_path / "cache") == first


def other_tree(tree: Path, one: LoadedFix) -> LoadedFix:
    (tree / "README.md").write_text("changed")
    return one


def other_code(tree: Path, one: LoadedFix) -> LoadedFix:
    return replace(one, code_sha256="other")


def other_engine(tree: Path, one: LoadedFix) -> LoadedFix:
    return one


def broken_file(tree: Path, one: LoadedFix) -> LoadedFix:
    (path,) = tree.parent.glob("cache/examined/*.json")
    path.write_bytes(path.read_bytes()[:20])
    return one


@pytest.mark.parametrize("change", [other_tree, other_code, other_engine, broken_file])
def test_it_is_asked_again_when_anything_changed(
    tmp_path: Path, change: Callable[[Path, LoadedFix], LoadedFix], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write_tree(tmp_path / "tree")
    examine(series(loaded(fix(), found=FOUND)), Source(tree), tmp_path / "cache")
    if change is other_engine:
        monkeypatch.setattr("seatrial.ports.examined._engine", lambda: "other")
    with pytest.raises(FixError):
        examine(series(change(tree, silent())), Source(tree), tmp_path / "cache")


def test_an_archive_is_not_opened_for_its_digest(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"PK no archive at all")
    assert len(Source(tmp_path / "a.whl").digest) == 64
