"""The front door: when the engine's environment has to be made again."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_nox(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests run in the engine's environment, which has no nox."""
    monkeypatch.setitem(sys.modules, "nox", MagicMock())


def front_door(folder: Path) -> Any:
    for name in ("noxfile.py", "pyproject.toml", "build/requirements/engine.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    spec = importlib.util.spec_from_file_location("front_door", folder / "noxfile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_environment_is_made_again_for_other_requirements(tmp_path: Path) -> None:
    door = front_door(tmp_path)
    before = door.wanted()
    assert door.wanted() == before
    (tmp_path / "build/requirements/engine.txt").write_text("")
    assert door.wanted() != before


def test_a_copied_checkout_does_not_run_the_engine_of_the_first(tmp_path: Path) -> None:
    assert front_door(tmp_path / "one").wanted() != front_door(tmp_path / "two").wanted()


def test_another_python_gets_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = front_door(tmp_path)
    before = door.wanted()
    monkeypatch.setattr(sys, "version", "4.0")
    assert door.wanted() != before
