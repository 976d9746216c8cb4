"""The detector of gdn-one-token-prompt on small trees that split decodes from prefills in every way."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from seatrial.model.fixes import VerdictKind
from seatrial.model.series import LoadedFix
from seatrial.model.verdict import Fit, judge
from seatrial.stages.fix_files import load_series
from tests.fixlab import MemoryTree

ROOT = Path(__file__).parents[2]
KERNELS = "vllm/layers/cpu_delta.py"
BUILDER = "vllm/backends/delta.py"
SHARED = "vllm/backends/shared.py"
PART = "first-token-as-decode"

FORWARD = """
    from vllm.backends.delta import DeltaMetadata

    def delta_core(mixed, metadata: DeltaMetadata, out):
        out[:] = ops.chunk_gated_delta_rule_cpu(mixed, initial_state=layer.state)
"""
BUILD = """
    from vllm.backends.shared import {imported}

    class DeltaMetadata:
        has_initial_state = None

    class Builder:
        def build(self, batch):
            return {call}
"""
SPLIT = """
    def split_decodes_and_prefills(batch, decode_threshold=1, require_uniform=False{parameter}):
        return 0, 0, 0, 0
"""
KNOWS = ", treat_short_extends_as_decodes=True"
PLAIN = "split_decodes_and_prefills(batch, decode_threshold=1)"
TOLD = "split_decodes_and_prefills(batch, treat_short_extends_as_decodes={})"


def tree(
    call: str = PLAIN, *, parameter: str = KNOWS, forward: str = FORWARD, imported: str = "split_decodes_and_prefills"
) -> MemoryTree:
    """Return a tree whose builder splits a batch with this call."""
    return MemoryTree(
        {
            "vllm/__init__.py": "",
            KERNELS: textwrap.dedent(forward),
            BUILDER: textwrap.dedent(BUILD).format(call=call, imported=imported),
            SHARED: textwrap.dedent(SPLIT).format(parameter=parameter),
        }
    )


@pytest.fixture(scope="module")
def fix() -> LoadedFix:
    """Return the fix as the series holds it."""
    return load_series(ROOT / "patches").fixes["gdn-one-token-prompt"]


def parts(fix: LoadedFix, files: MemoryTree) -> list[str]:
    """Return the parts that the detector finds."""
    return [finding.part for finding in fix.examine(files).findings]


def test_split_by_length_is_seen_and_placed(fix: LoadedFix) -> None:
    files = tree()
    (found,) = fix.examine(files).findings
    assert (found.part, found.path) == (PART, BUILDER)
    assert PLAIN in files.files[BUILDER].splitlines()[found.line - 1]
    assert KERNELS in found.message


@pytest.mark.parametrize(
    ("call", "parameter", "found"),
    [
        pytest.param(TOLD.format("False"), KNOWS, [], id="told"),
        pytest.param(TOLD.format("True"), KNOWS, [PART], id="told the wrong thing"),
        pytest.param(TOLD.format("self.graphs"), KNOWS, [], id="worked out for each batch"),
        pytest.param("split_decodes_and_prefills(batch, 1, False, False)", KNOWS, [], id="by position"),
        pytest.param("split_decodes_and_prefills(batch, 1, False, True)", KNOWS, [PART], id="wrong by position"),
        pytest.param("split_decodes_and_prefills(batch, 1, False)", KNOWS, [PART], id="a position short"),
        pytest.param(PLAIN, KNOWS.replace("True", "False"), [], id="by default"),
        pytest.param(PLAIN, ", *, treat_short_extends_as_decodes=False", [], id="by a default for keywords"),
        pytest.param(PLAIN, "", [PART], id="a split that cannot be told"),
        pytest.param(f"shared.{PLAIN}", KNOWS, [PART], id="through its module"),
        pytest.param(f"({TOLD.format('False')}, {PLAIN})", KNOWS, [PART], id="one of two"),
    ],
)
def test_what_counts_as_told(fix: LoadedFix, call: str, parameter: str, found: list[str]) -> None:
    assert parts(fix, tree(call, parameter=parameter)) == found


def test_other_name_of_the_split_is_followed(fix: LoadedFix) -> None:
    imported = "split_decodes_and_prefills as split"
    assert parts(fix, tree("split(batch)", imported=imported)) == [PART]
    assert parts(fix, tree("split(batch, treat_short_extends_as_decodes=False)", imported=imported)) == []


def test_builders_of_other_layers_are_left_alone(fix: LoadedFix) -> None:
    elsewhere = FORWARD.replace("backends.delta", "backends.gamma").replace("DeltaMetadata", "GammaMetadata")
    assert parts(fix, tree(forward=elsewhere)) == []


def test_mended_and_missing_trees_are_told_apart(fix: LoadedFix) -> None:
    def kind(files: MemoryTree) -> VerdictKind:
        return judge(fix, "0.28.0", fix.examine(files), Fit(tree="t"), {}).kind

    assert kind(tree()) is VerdictKind.APPLIES
    assert kind(tree(TOLD.format("False"))) is VerdictKind.UPSTREAM
    assert kind(tree(forward=FORWARD.replace("rule_cpu", "rule"))) is VerdictKind.NOT_PRESENT
