"""The verb `repair`: rewrite a downstream tree that no patch fits."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.model.errors import DiskError, FixError, UsageError
from seatrial.model.scratch import source_lines, source_text
from seatrial.ports.files import write_atomic

if TYPE_CHECKING:
    from seatrial.stages.repair import Refusal, Rewritten

REPAIRS = ("gdn-dtype",)
"""Fixes that have a repair beside, or instead of, their patches."""


@dataclass(frozen=True)
class Repaired:
    """What a repair did, or would do."""

    tree: Path
    files: tuple[Rewritten, ...]

    @property
    def taken_by(self) -> str:
        """Return the command that takes the repair's patch: `git am` drops the CR of lines that end with CR LF."""
        return "git am --keep-cr" if any(b"\r" in one.before for one in self.files) else "git am"

    def diff(self) -> list[str]:
        """Return the change as lines of a unified diff."""
        lines: list[str] = []
        for one in self.files:
            lines += difflib.unified_diff(
                _lines(one.before, one.path),
                _lines(one.after, one.path),
                f"a/{one.path}",
                f"b/{one.path}",
                lineterm="",
            )
        return lines


def _lines(data: bytes, path: str) -> list[str]:
    return [line.rstrip("\r\n") for line in source_lines(source_text(data, path))]


def plan_repair(fix: str, tree: Path) -> tuple[Repaired, tuple[Refusal, ...]]:
    """Return what a repair would do to a tree, and the places that it refuses.

    Raises:
        UsageError: the fix has no repair, or there is no vLLM tree.
        IntegrityError: a source is no Python; says where.
    """
    if fix not in REPAIRS:
        raise UsageError(f"{fix} has no repair", do=f"name one of: {', '.join(REPAIRS)}")
    from seatrial.stages.repair import repair_tree  # noqa: PLC0415 - libcst would slow every other verb's start

    files = repair_tree(tree)
    return Repaired(tree, files), tuple(refusal for one in files for refusal in one.refusals)


def carry_out(repaired: Repaired, patch: Path | None, *, dry_run: bool) -> None:
    """Write the patch, then the tree; neither when one cannot be.

    Raises:
        DiskError: a file is read-only or cannot be written.
    """
    from seatrial.stages.repair import write_patch, write_tree  # noqa: PLC0415 - as above

    if patch is not None and patch.exists() and not patch.is_file():
        raise DiskError(f"{patch} is no file", why="a patch takes its place, a device's as well", do="name a file")
    kept = patch.read_bytes() if patch is not None and patch.is_file() else None
    try:
        if patch is not None:
            write_patch(patch, repaired.tree, repaired.files)
        if not dry_run:
            write_tree(repaired.tree, repaired.files)
    except BaseException:
        if patch is not None and kept is not None:
            write_atomic(patch, kept)
        elif patch is not None:
            patch.unlink(missing_ok=True)
        raise


def refused(tree: Path, refusals: tuple[Refusal, ...]) -> FixError:
    """Return the error for a tree that cannot be repaired."""
    more = f" and {len(refusals) - 1} more places" if len(refusals) > 1 else ""
    return FixError(
        f"{tree} cannot be repaired; nothing was written",
        why=f"{refusals[0]}{more}",
        do="mend these places by hand, and repair the rest then",
    )
