"""Receipts: the same inputs are found again, anything doubtful counts as none and is said."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial.model.errors import UsageError
from seatrial.ports.console import Console
from seatrial.ports.receipts import Receipts, alone

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine is no failure."""

INPUTS = {"lock": "a" * 64, "fixes": ["one", "two"], "jobs": 2}
OUTPUTS = {"wheel": "vllm.whl", "sha256": "b" * 64}


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def receipts(tmp_path: Path, said: io.StringIO) -> Receipts:
    return Receipts(tmp_path / "receipts", Console(out=said, ci=False))


def test_what_was_left_is_found(receipts: Receipts, said: io.StringIO) -> None:
    assert receipts.find("wheel", INPUTS) is None
    receipts.leave("wheel", INPUTS, OUTPUTS)
    assert receipts.find("wheel", dict(reversed(INPUTS.items()))) == OUTPUTS
    assert said.getvalue() == ""


@pytest.mark.parametrize(
    ("stage", "inputs"),
    [
        ("image", INPUTS),
        ("wheel", {}),
        ("wheel", {**INPUTS, "jobs": 3}),
        ("wheel", {**INPUTS, "fixes": ["two", "one"]}),
    ],
)
def test_other_work_is_not_found(receipts: Receipts, stage: str, inputs: dict[str, object]) -> None:
    receipts.leave("wheel", INPUTS, OUTPUTS)
    assert receipts.find(stage, inputs) is None


def test_every_truncation_counts_as_none_and_is_said(receipts: Receipts, said: io.StringIO) -> None:
    receipts.leave("wheel", INPUTS, OUTPUTS)
    path = receipts.path("wheel", INPUTS)
    whole = path.read_bytes()
    for length in range(len(whole) - 1):
        said.truncate(0)
        path.write_bytes(whole[:length])
        assert receipts.find("wheel", INPUTS) is None
        assert "wheel: runs again: its receipt is broken" in said.getvalue()
    path.write_bytes(whole)
    assert receipts.find("wheel", INPUTS) == OUTPUTS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outputs": {"wheel": "other.whl"}}, "changed after it was written"),
        ({"inputs": {}}, "changed after it was written"),
        ({"content_sha256": "0" * 64}, "changed after it was written"),
        ({"schema": "seatrial.receipt/2"}, "is broken"),
        ({"extra": 1}, "is broken"),
    ],
)
def test_an_edited_receipt_counts_as_none(
    receipts: Receipts, said: io.StringIO, change: dict[str, object], words: str
) -> None:
    receipts.leave("wheel", INPUTS, OUTPUTS)
    path = receipts.path("wheel", INPUTS)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert receipts.find("wheel", INPUTS) is None
    assert words in said.getvalue()


def test_a_receipt_under_another_name_counts_as_none(receipts: Receipts, said: io.StringIO) -> None:
    receipts.leave("wheel", INPUTS, OUTPUTS)
    receipts.path("wheel", INPUTS).rename(receipts.path("wheel", {}))
    assert receipts.find("wheel", {}) is None
    assert "for other inputs" in said.getvalue()


def test_lost_outputs_make_the_stage_run_again(receipts: Receipts, said: io.StringIO) -> None:
    receipts.leave("wheel", INPUTS, OUTPUTS)
    assert receipts.find("wheel", INPUTS, lost=lambda outputs: f"{outputs['wheel']} is gone") is None
    assert "wheel: runs again: vllm.whl is gone" in said.getvalue()
    assert receipts.find("wheel", INPUTS, lost=lambda outputs: "") == OUTPUTS


def test_nothing_half_made_stays_behind(receipts: Receipts, tmp_path: Path) -> None:
    receipts.leave("wheel", INPUTS, OUTPUTS)
    receipts.leave("wheel", INPUTS, OUTPUTS)
    assert [path.name for path in (tmp_path / "receipts").iterdir()] == [receipts.path("wheel", INPUTS).name]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
documents = st.dictionaries(st.text(max_size=5), plain, max_size=3)


@calm
@given(documents, documents)
def test_any_json_comes_back(tmp_path_factory: pytest.TempPathFactory, inputs: dict, outputs: dict) -> None:
    receipts = Receipts(tmp_path_factory.mktemp("receipts"), Console(out=io.StringIO()))
    receipts.leave("stage", inputs, outputs)
    assert receipts.find("stage", inputs) == outputs


def test_a_second_build_of_the_same_is_told_who_runs(tmp_path: Path) -> None:
    lock = tmp_path / "locks" / "build"
    lock.parent.mkdir()
    lock.write_text("1234567890123\n")
    with alone(lock, "build of 0.28.0-cpu"):
        here = rf"another build of 0\.28\.0-cpu runs here \(pid {os.getpid()}\)"
        with pytest.raises(UsageError, match=here), alone(lock, "build of 0.28.0-cpu"):
            raise AssertionError("two builds at once")
        with alone(tmp_path / "locks" / "other", "build of 0.15.1-cpu"):
            pass
    with alone(lock, "build of 0.28.0-cpu"):
        pass


def test_a_failed_build_frees_its_lock(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), alone(tmp_path / "lock", "build"):
        raise RuntimeError
    with alone(tmp_path / "lock", "build"):
        pass
