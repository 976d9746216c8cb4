"""Verdicts of gdn-state-dtype on upstream's releases, each read once by a person and kept here.

What the compiled kernels take was asked of them as well (docs/fixes/gdn-state-dtype.md): in 0.28.0 a float32 state
only, from 0.29.0 on any; activations in bfloat16 only, in all of them.
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
FIX = "gdn-state-dtype"
STATE, LATE = "state-dtype-default", "dtype-refused-late"
CPU = Platform(name="cpu", family="cpu", device="cpu", machine="x86_64")


@pytest.fixture(scope="module")
def series() -> LoadedSeries:
    return load_series(ROOT / "patches")


@pytest.mark.parametrize(
    ("version", "subject", "parts"),
    [
        ("0.15.1", False, []),
        ("0.28.0", True, [LATE, STATE]),
        ("0.29.0", True, [LATE]),
        ("0.30.0", True, [LATE]),
        ("0.31.0", True, [LATE]),
        ("0.32.0", True, [LATE]),
        ("0.33.0", True, [LATE]),
    ],
)
def test_release(series: LoadedSeries, version: str, subject: bool, parts: list[str], tmp_path: Path) -> None:
    seen = series.fixes[FIX].examine(release(version, tmp_path))
    assert seen.subject is subject
    assert [finding.part for finding in seen.findings] == parts
    assert all("float32" in finding.message for finding in seen.findings if finding.part == LATE)


def test_base_is_cured_and_exports_the_same_bytes(series: LoadedSeries, tmp_path: Path) -> None:
    console, cache = Console(out=io.StringIO()), Cache(tmp_path / "cache")
    lock = load_base(ROOT / "build" / "bases", "0.28.0")
    source = fetch_tree(lock, None, cache=cache, index=open_index(), console=console).path
    table = status(series, {"0.28.0": source}, cache=tmp_path, console=console)
    verdict = next(row for row in table.fixes if row.id == FIX).verdicts[0]
    assert (verdict.kind.value, verdict.patch_fits, verdict.reason) == ("applies", True, "")
    made = apply_series(series, "0.28.0", CPU, source, tmp_path / "tree", cache=tmp_path, console=console)
    assert FIX in [fix.id for fix in made.applied]
    patches = tmp_path / "patches"
    for path in (ROOT / "patches").rglob("*"):
        if path.is_file():
            (patches / path.relative_to(ROOT / "patches")).parent.mkdir(parents=True, exist_ok=True)
            (patches / path.relative_to(ROOT / "patches")).write_bytes(path.read_bytes())
    assert not any(written.changed for written in export(made.root, load_series(patches), patches))
