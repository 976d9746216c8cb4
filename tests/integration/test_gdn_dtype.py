"""Verdicts of gdn-dtype on upstream's releases, each tree read once by a person and kept here.

None has the defect: their Gated DeltaNet layers allocate in the dtype of the activations. What else there is of literal
16-bit tensors beside kernels was looked at one by one (docs/fixes/gdn-dtype.md). The downstream tree that has it is
public as a patch only, on no index; its findings stand in that page.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from seatrial.model.fixes import VerdictKind
from seatrial.model.series import LoadedFix
from seatrial.model.verdict import judge
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Wanted, open_index
from seatrial.ports.trees import SourceTree, open_tree
from seatrial.stages.fetch import fetch_tree
from seatrial.stages.fix_files import load_series
from seatrial.stages.lock_base import load_base

pytestmark = pytest.mark.index
ROOT = Path(__file__).parents[2]
SDISTS = {
    "0.14.1": "c7c6d0a729d29e70ac10baacbc7186930da24f8ae34f60451330527ff0be84ac",
    "0.16.0": "1f684bb31fbef59d862e2fe666e23a41f1d39d93f86215ce1ce1db89a8f5665b",
    "0.28.0": "ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a",
    "0.33.0": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
}
MODEL = "vllm/model_executor/models/qwen3_next.py"
LAYER = "vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py"
GATES = ("fused_gdn_gating(self.A_log, a,", "fused_gdn_gating(self.A_log, torch.empty_like(a, dtype=torch.float16),")
OUTPUT = ("dtype=hidden_states.dtype", "dtype=torch.float16")
SPOILT = {
    "0.14.1": (MODEL, GATES),
    "0.15.1": (MODEL, GATES),
    "0.16.0": (MODEL, GATES),
    "0.28.0": (LAYER, OUTPUT),
    "0.33.0": (LAYER, OUTPUT),
}
"""For each release a change that brings the defect in: the kernels behind its custom operators are found."""


@pytest.fixture(scope="module")
def fix() -> LoadedFix:
    return load_series(ROOT / "patches").fixes["gdn-dtype"]


def released(version: str, cache: Path) -> SourceTree:
    """Fetch a release's source archive by its hash; that of 0.15.1, which has none, as its lock says."""
    store, console, index = Cache(cache), Console(out=io.StringIO()), open_index()
    if version not in SDISTS:
        lock = load_base(ROOT / "build" / "bases", version)
        return open_tree(fetch_tree(lock, None, cache=store, index=index, console=console).path)
    wanted = Wanted("vllm", f"vllm-{version}.tar.gz", SDISTS[version])
    return open_tree(index.download(wanted, cache=store, console=console))


@pytest.mark.parametrize("version", SPOILT)
def test_release(fix: LoadedFix, version: str, tmp_path: Path) -> None:
    tree = released(version, tmp_path)
    seen = fix.examine(tree)
    assert seen.findings == ()
    assert judge(fix, version, seen, None, {}).kind is VerdictKind.UPSTREAM
    path, (right, wrong) = SPOILT[version]
    layer = tree.read(path).decode()
    assert right in layer
    found = fix.examine(Spoilt(tree, path, layer.replace(right, wrong))).findings
    assert {(one.part, one.path) for one in found} == {("scratch-dtype", path)}
    assert all("dt_bias" in one.message for one in found)


class Spoilt:
    """A tree with another text in one file."""

    def __init__(self, tree: SourceTree, path: str, text: str) -> None:
        self.origin = tree.origin
        self._tree, self._path, self._text = tree, path, text
        self.paths, self.has = tree.paths, tree.has

    def read(self, path: str) -> bytes:
        return self._text.encode() if path == self._path else self._tree.read(path)
