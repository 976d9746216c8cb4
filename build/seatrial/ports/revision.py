"""Which seatrial is running: its commit, and whether the checkout was changed since."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.model.errors import CommandError
from seatrial.ports.process import run

SECONDS = 30.0


def source_revision(root: Path, paths: Sequence[str], digest: str) -> str:
    """Return the last commit that touched some paths of a checkout; changes on top of it add a digest.

    Commits that touch other paths (documentation, tests) leave the answer as it is, so that they make no new image.

    Args:
        root: the checkout.
        paths: files and folders below it that decide what is built.
        digest: digest of these paths' content as it is now.
    """
    try:
        commit = run(["git", "log", "-1", "--format=%H", "--", *paths], timeout=SECONDS, cwd=root).text.strip()
        changed = run(["git", "status", "--porcelain", "--", *paths], timeout=SECONDS, cwd=root).text.strip()
    except CommandError:
        return f"unversioned-{digest[:12]}"
    if not commit:
        return f"unversioned-{digest[:12]}"
    return f"{commit}-dirty-{digest[:12]}" if changed else commit
