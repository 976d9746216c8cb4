"""Verdicts of gdn-fused-path on upstream's releases, each read once by a person and kept here.

0.14.1 to 0.16.0 have Triton kernels alone. 0.28.0 and later pick forward_xpu and forward_cpu in the layer's own
constructor, leave weights alone that are no matrices, ask for both dtypes of the state and widen in the gated norm.
Layers of other models (OLMo Hybrid, Kimi) have other projections, which the fused operator does not take.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from seatrial.model.platforms import Platform
from seatrial.model.series import LoadedSeries
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import open_index
from seatrial.stages.export import export
from seatrial.stages.fetch import fetch_tree
from seatrial.stages.fix_files import load_series
from seatrial.stages.fixes import apply_series, status
from seatrial.stages.lock_base import load_base
from tests.releases import release

pytestmark = pytest.mark.index
ROOT = Path(__file__).parents[2]
FIX = "gdn-fused-path"
PARTS = ["conv-weight-rank", "cpu-forward", "norm-in-half", "state-dtype-ignored", "xpu-forward"]
MODEL = "vllm/model_executor/models/qwen3_next.py"
ROWS = [
    Platform(name=family, family=family, device=family, machine="x86_64")  # type: ignore[arg-type]
    for family in ("cpu", "xpu", "cuda")
]


@pytest.fixture(scope="module")
def series() -> LoadedSeries:
    return load_series(ROOT / "patches")


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("0.14.1", PARTS),
        ("0.15.1", PARTS),
        ("0.16.0", PARTS),
        ("0.28.0", []),
        ("0.32.0", []),
        ("0.33.0", []),
    ],
)
def test_release(series: LoadedSeries, version: str, parts: list[str], tmp_path: Path) -> None:
    seen = series.fixes[FIX].examine(release(version, tmp_path))
    assert seen.subject
    assert sorted({finding.part for finding in seen.findings}) == parts
    assert all(finding.path == MODEL for finding in seen.findings if finding.part.endswith("-forward"))


def test_base_is_cured_and_exports_the_same_bytes(series: LoadedSeries, tmp_path: Path) -> None:
    console, cache = Console(out=io.StringIO()), Cache(tmp_path / "cache")
    lock = load_base(ROOT / "build" / "bases", "0.15.1")
    source = fetch_tree(lock, None, cache=cache, index=open_index(), console=console).path
    table = status(series, {"0.15.1": source}, cache=tmp_path, console=console)
    verdict = next(row for row in table.fixes if row.id == FIX).verdicts[0]
    assert (verdict.kind.value, verdict.patch_fits, verdict.reason) == ("applies", True, "")
    for row in ROWS:
        made = apply_series(series, "0.15.1", row, source, tmp_path / row.name, cache=tmp_path, console=console)
        assert (FIX in [fix.id for fix in made.applied]) is (row.name != "cuda")
    patches = tmp_path / "patches"
    for path in (ROOT / "patches").rglob("*"):
        if path.is_file():
            (patches / path.relative_to(ROOT / "patches")).parent.mkdir(parents=True, exist_ok=True)
            (patches / path.relative_to(ROOT / "patches")).write_bytes(path.read_bytes())
    assert not any(written.changed for written in export(tmp_path / "cpu", load_series(patches), patches))
