"""The naming stage on stores that misbehave: it looks again after it has written, and never writes without the gate."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from seatrial.model.errors import RefusedError
from seatrial.model.gate import Policy
from seatrial.model.names import REVISION_LABEL, Line
from seatrial.ports.console import Console
from seatrial.stages.naming import give_names
from tests.nameslab import LINE, POLICY, reports

DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64
RELEASE, MOVING = LINE.release_tag(1), LINE.moving_tag


class Store:
    """A store in which another process may overtake the writer of some tags."""

    where = "vllm"

    def __init__(self, overtaken: Sequence[str] = ()) -> None:
        self.held: dict[str, str] = {}
        self.written: list[str] = []
        self._overtaken = overtaken

    def tags(self) -> Sequence[str]:
        return list(self.held)

    def digest(self, tag: str) -> str | None:
        return self.held.get(tag)

    def labels(self, digest: str) -> Mapping[str, str]:
        return {REVISION_LABEL: "1"}

    def put_tag(self, tag: str, digest: str) -> None:
        self.written.append(tag)
        self.held[tag] = OTHER if tag in self._overtaken else digest


def name(store: Store, folder: Path, *, policy: Policy = POLICY, line: Line = LINE, bad: str = "") -> str:
    said = io.StringIO()
    give_names(
        store,
        DIGEST,
        line,
        1,
        reports=reports(DIGEST, bad=bad),
        policy=policy,
        lock=folder / "lock",
        console=Console(out=said, ci=False),
    )
    return said.getvalue()


def test_the_numbered_name_is_given_before_the_moving_one(tmp_path: Path) -> None:
    store = Store()
    said = name(store, tmp_path)
    assert store.written == [RELEASE, MOVING]
    assert f"vllm:{RELEASE} -> {DIGEST}" in said
    assert "already" not in said


def test_the_same_again_writes_nothing_and_says_so(tmp_path: Path) -> None:
    store = Store()
    name(store, tmp_path)
    assert f"vllm:{RELEASE} stands for {DIGEST} already" in name(store, tmp_path)
    assert len(store.written) == 2
    del store.held[MOVING]
    assert "already" not in name(store, tmp_path)


@pytest.mark.parametrize("tag", [RELEASE, MOVING])
def test_a_name_that_is_taken_in_the_same_moment_is_told(tmp_path: Path, tag: str) -> None:
    with pytest.raises(RefusedError, match="was taken in the same moment"):
        name(Store(overtaken=[tag]), tmp_path)


@pytest.mark.parametrize("base", ["0.15.1", "0.28.1"])
def test_one_lines_rules_do_not_name_on_another_line(tmp_path: Path, base: str) -> None:
    store = Store()
    with pytest.raises(RefusedError, match="cannot be given by the rules of"):
        name(store, tmp_path, line=Line(base=base, platform="cpu"))
    assert store.written == []


def test_a_failed_case_writes_nothing(tmp_path: Path) -> None:
    store = Store()
    with pytest.raises(RefusedError) as caught:
        name(store, tmp_path, bad="first-request", policy=POLICY.model_copy(update={"device": "cuda"}))
    assert store.written == []
    assert caught.value.why.endswith("(and 1 more)")
    assert "first-request" in caught.value.why, "a failed case is the reason that is given"
