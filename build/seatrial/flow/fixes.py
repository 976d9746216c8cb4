"""The verbs about fixes: status, check, apply, export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.flow.project import choose_base
from seatrial.flow.shop import Shop
from seatrial.model.series import CheckedTree, ExportedPatch, PatchedTree, StatusTable
from seatrial.stages.check import check
from seatrial.stages.export import export
from seatrial.stages.fetch import fetch_tree
from seatrial.stages.fix_files import load_series
from seatrial.stages.fixes import apply_series, status


def status_of(shop: Shop, bases: Sequence[str]) -> StatusTable:
    """Return what every fix is to the given bases; all locked ones when none is given."""
    series = load_series(shop.project.patches)
    locks = [shop.project.base_lock(base) for base in bases or shop.project.base_versions()]
    sources = {
        lock.version: fetch_tree(lock, None, cache=shop.cache, index=shop.index, console=shop.console).path
        for lock in locks
    }
    return status(series, sources, cache=shop.cache.root, console=shop.console)


def check_path(shop: Shop, path: Path) -> CheckedTree:
    """Run every detector over a source folder, an sdist or a wheel; UsageError when there is nothing at the path."""
    return check(path, load_series(shop.project.patches))


def apply_to(shop: Shop, base: str | None, platform: str, out: Path, without: Sequence[str]) -> PatchedTree:
    """Lay the fixes of a platform over a base in the folder `out`, as git commits."""
    row = shop.project.platform_table().row(platform)
    lock = shop.project.base_lock(choose_base(row, base))
    series = load_series(shop.project.patches)
    series.check_without(without)
    source = fetch_tree(lock, row.artifact, cache=shop.cache, index=shop.index, console=shop.console)
    return apply_series(
        series,
        lock.version,
        row,
        source.path,
        out,
        cache=shop.cache.root,
        console=shop.console,
        without=tuple(without),
    )


def export_from(shop: Shop, tree: Path) -> tuple[ExportedPatch, ...]:
    """Write the commits of a tree that `apply` made back to `patches/`."""
    return export(tree, load_series(shop.project.patches), shop.project.patches)
