"""Locking and fetching from the index that pip is configured for on this machine."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from seatrial.model.base import BaseLock, Role
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index, open_index
from seatrial.ports.ranges import HttpRanges
from seatrial.stages.fetch import fetch_artifact, fetch_tree
from seatrial.stages.lock_base import load_base, lock_base

pytestmark = pytest.mark.index
BASES = Path(__file__).parents[2] / "build" / "bases"


@pytest.fixture(scope="module")
def index() -> Index:
    return open_index()


@pytest.fixture
def console() -> Console:
    return Console(out=io.StringIO())


def without_evidence(lock: BaseLock) -> BaseLock:
    """Leave out how the commit was learned, which depends on where the repository can be reached."""
    source = lock.source.model_copy(update={"evidence": ""})
    return lock.model_copy(update={"source": source, "content_sha256": ""})


@pytest.mark.parametrize("version", ["0.15.1", "0.28.0"])
def test_locking_again_gives_the_committed_lock(version: str, index: Index, console: Console, tmp_path: Path) -> None:
    kept = load_base(BASES, version)
    again = lock_base(version, commit=kept.source.commit, index=index, cache=Cache(tmp_path), console=console)
    assert without_evidence(again) == without_evidence(kept)


def test_the_tree_of_a_base_without_an_sdist_costs_megabytes(
    index: Index, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[HttpRanges] = []
    learn = HttpRanges.__init__

    def remember(self: HttpRanges, *arguments: object) -> None:
        seen.append(self)
        learn(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(HttpRanges, "__init__", remember)
    lock = load_base(BASES, "0.15.1")
    source = fetch_tree(lock, Role.CPU_WHEEL, cache=Cache(tmp_path), index=index, console=console)
    with zipfile.ZipFile(source.path) as archive:
        assert len([name for name in archive.namelist() if name.endswith(".py")]) == 1297
        assert b"def " in archive.read("vllm/config/model.py")
    assert len(seen) == 1
    assert 4_000_000 < seen[0].traffic < 6_000_000
    assert seen[0].requests < 40


def test_the_cpu_wheel_of_a_base_is_fetched(index: Index, console: Console, tmp_path: Path) -> None:
    lock = load_base(BASES, "0.15.1")
    path = fetch_artifact(lock, Role.CPU_WHEEL, cache=Cache(tmp_path), index=index, console=console)
    assert path.stat().st_size == 17_329_832
