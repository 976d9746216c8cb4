"""From a plan to a patched tree and a wheel: the part of a build that needs no container engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seatrial.flow.plan import BuildPlan
from seatrial.flow.shop import Shop
from seatrial.model.base import Role
from seatrial.model.errors import BuildError
from seatrial.model.record import RecordedWheel
from seatrial.model.series import PatchedTree
from seatrial.model.wheel import wheel_version
from seatrial.ports.files import sha256_file
from seatrial.ports.receipts import Receipts
from seatrial.stages.fetch import fetch_artifact, fetch_tree
from seatrial.stages.fixes import apply_series, set_aside
from seatrial.stages.official import read_official
from seatrial.stages.wheel import VERSION_FILE, Official, Overlay, overlay


def patched_tree(shop: Shop, plan: BuildPlan, receipts: Receipts, code: str) -> PatchedTree:
    """Return the base's tree with the platform's fixes in it; nothing is done when nothing changed."""
    project = shop.project
    inputs = {
        "base": plan.lock.content_sha256,
        "platform": plan.platform.name,
        "fixes": project.code_digest(project.patches),
        "without": sorted(plan.request.without),
        "code": code,
    }
    known = receipts.find("fixes", inputs, lost=_lost_tree)
    if known is not None:
        shop.console.detail("unchanged: the patched tree is kept")
        return PatchedTree.model_validate_json(known["tree"])
    source = fetch_tree(plan.lock, plan.platform.artifact, cache=shop.cache, index=shop.index, console=shop.console)
    set_aside(plan.out / "tree", shop.console)
    tree = apply_series(
        plan.series,
        plan.lock.version,
        plan.platform,
        source.path,
        plan.out / "tree",
        cache=shop.cache.root,
        console=shop.console,
        without=plan.request.without,
    )
    receipts.leave("fixes", inputs, {"tree": tree.model_dump_json(), "files": patched_files(tree)})
    return tree


def _lost_tree(outputs: dict[str, Any]) -> str:
    """Say which patched file is gone or was edited: what is built must be what the patches make."""
    tree = PatchedTree.model_validate_json(outputs["tree"])
    for name, stated in outputs["files"].items():
        path = tree.root / name
        if not path.is_file():
            return f"{name} is gone from {tree.root}"
        if sha256_file(path) != stated:
            return f"{name} in {tree.root} was changed"
    return "" if tree.root.is_dir() else f"{tree.root} is gone"


def restored_files(plan: BuildPlan, tree: PatchedTree) -> tuple[str, ...]:
    """Return the Python files that the wheel's builder had changed: upstream's own take their place.

    Raises:
        BuildError: a fix adds a file that the wheel's builder had added as well.
    """
    restored: list[str] = []
    for comparison in plan.lock.comparisons:
        if comparison.left is not plan.platform.artifact:
            continue
        both = sorted(set(tree.changed) & set(comparison.only_left))
        if both:
            raise BuildError(
                f"{both[0]} was added by whoever built {plan.lock.artifact(comparison.left).file}",
                why="a fix adds the same file",
                do="compare the two files, and build this platform from source or from another wheel",
            )
        restored += [name for name in comparison.differing if name != VERSION_FILE and (tree.root / name).is_file()]
    return tuple(sorted(set(restored) - {*tree.changed, *tree.removed}))


def patched_wheel(
    shop: Shop, plan: BuildPlan, tree: PatchedTree, revision: int, *, receipts: Receipts, code: str
) -> tuple[Path, RecordedWheel]:
    """Return the overlay wheel of a revision; nothing is done when nothing changed."""
    assert plan.platform.artifact is not None
    version = wheel_version(plan.lock.version, plan.platform.name, revision)
    inputs = {"base": plan.lock.content_sha256, "tree": tree.commit, "version": version, "code": code}
    known = receipts.find("wheel", inputs, lost=lambda outputs: _lost_wheel(plan, outputs))
    if known is not None:
        shop.console.detail(f"unchanged: {known['file']}")
        return plan.out / known["file"], RecordedWheel.model_validate_json(known["recorded"])
    upstream = fetch_artifact(
        plan.lock, plan.platform.artifact, cache=shop.cache, index=shop.index, console=shop.console
    )
    restored = restored_files(plan, tree)
    official = None
    if plan.platform.artifact is not Role.OFFICIAL_WHEEL:
        text = read_official(plan.lock, cache=shop.cache, index=shop.index, console=shop.console)
        official = Official(text.metadata, text.licences)
    made = overlay(
        Overlay(
            upstream=upstream,
            tree=tree.root,
            changed=tree.changed,
            restored=restored,
            removed=tree.removed,
            fixes=tree.applied,
            version=version,
            official=official,
        ),
        plan.out,
    )
    for note in made.notes:
        shop.console.detail(note)
    shop.console.detail(f"{made.path.name}: {len(made.replaced)} files replaced, {len(made.added)} added")
    receipts.leave("wheel", inputs, {"file": made.path.name, "recorded": made.recorded.model_dump_json()})
    return made.path, made.recorded


def _lost_wheel(plan: BuildPlan, outputs: dict[str, Any]) -> str:
    path = plan.out / str(outputs["file"])
    recorded = RecordedWheel.model_validate_json(outputs["recorded"])
    if not path.is_file():
        return f"{path.name} is gone"
    if path.stat().st_size != recorded.size or sha256_file(path) != recorded.sha256:
        return f"{path.name} does not hold its bytes any more"
    return ""


def patched_files(tree: PatchedTree, more: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the SHA-256 of every file that comes from the tree, as inspect will look for it in the image.

    Args:
        more: files that come from the tree although no fix changed them.
    """
    inside = [name for name in (*tree.changed, *more) if name.startswith("vllm/")]
    return {name: sha256_file(tree.root / name) for name in inside}
