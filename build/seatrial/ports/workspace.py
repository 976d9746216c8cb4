"""A base tree in git: imported once, kept in the cache, asked whether patches fit."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from seatrial.model.errors import CommandError
from seatrial.model.patches import hunk_at
from seatrial.model.series import Patch
from seatrial.model.verdict import Fit
from seatrial.ports import git as gitport
from seatrial.ports.console import Console
from seatrial.ports.files import disk_errors, scratch_beside
from seatrial.ports.git import BASE_REF, Git
from seatrial.ports.receipts import alone
from seatrial.ports.trees import Source

FORMAT = 1
"""Part of the cache key; raise it when the same tree would be imported in another way."""

IMPORT_WAIT = 120.0
"""Seconds to wait for another process that imports the same tree."""

LEFT_OUT = re.compile(r"(?:\.so(?:\.\d+)*|\.py[co]|^docs/assets/.*)$")
"""Files that no fix can change and no build reads: built libraries, byte code, the documentation's pictures."""

_FAILED = re.compile(r"^error: patch failed: (?P<path>.+):(?P<line>\d+)$", re.MULTILINE)
_NO_FILE = re.compile(r"^error: (?P<path>.+): (?P<why>does not exist in index|already exists in index)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Workspace:
    """The pristine base in a bare repository."""

    git: Git
    base: str
    commit: str

    def fit(self, start: str, patch: Patch) -> Fit:
        """Try a patch on a tree or commit, in an index of its own: exactly, then three-way on the blobs it names.

        Git never fuzzes: every context line has to be there. A three-way merge needs the very file that
        the patch was made from, so it is exact in another way, not a guess.
        """
        with self.git.scratch_index() as scratch:
            scratch.run("read-tree", start)
            try:
                exact = scratch.run(*_APPLY, stdin=patch.data, check=False)
                if exact.status == 0:
                    return Fit(scratch.line("write-tree"))
                merged = scratch.run(*_APPLY, "--3way", stdin=patch.data, check=False)
            except CommandError as error:  # the patch itself is broken
                return Fit(None, error.why)
            if merged.status == 0:
                return Fit(scratch.line("write-tree"), "by a three-way merge")
            return Fit(None, explain(patch, exact.stderr.decode(errors="replace")))


_APPLY = ("apply", "--cached", "--whitespace=nowarn")


def explain(patch: Patch, complaint: str) -> str:
    """Say which file and hunk of a patch does not fit, from what `git apply` said."""
    places = []
    for found in _FAILED.finditer(complaint):
        hunk = hunk_at(patch.data, found["path"], int(found["line"]))
        places.append(f"{found['path']}:{found['line']}" + (f" (hunk {hunk})" if hunk else ""))
    for found in _NO_FILE.finditer(complaint):
        places.append(f"{found['path']} {found['why'].replace(' in index', '')}")
    if not places:
        places = [line.removeprefix("error: ") for line in complaint.splitlines() if line.startswith("error: ")][:1]
    return "; ".join(dict.fromkeys(places)) or "git apply gave no reason"


def open_workspace(source: Source, base: str, cache: Path, console: Console) -> Workspace:
    """Return the workspace of a base tree, imported on the first call and found again after that.

    Args:
        source: the pristine tree; opened only for the import.
        base: upstream version, for names and messages.
        cache: seatrial's cache folder.

    Raises:
        UnsupportedError: git is too old.
        DiskError: the cache cannot be written.
    """
    gitport.need_git()
    target = cache / "git" / f"{base}-{source.digest[:20]}-v{FORMAT}.git"
    with disk_errors(target), alone(target.with_suffix(".lock"), f"import of vLLM {base}", wait=IMPORT_WAIT):
        known = _known(target)
        commit = known or _import(source, base, target, console)
    return Workspace(Git(target), base, commit)


def _import(source: Source, base: str, target: Path, console: Console) -> str:
    """Import the tree into a new repository at `target`; nobody else is at it."""
    for stale in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(stale)  # left by a process that was killed
    if target.exists():
        console.detail(f"{target} is damaged: imported again")
        shutil.rmtree(target)
    console.detail(f"importing vLLM {base} into git (once)")
    tree = source.tree
    paths = tuple(path for path in tree.paths() if not LEFT_OUT.search(path))
    with scratch_beside(target) as scratch:
        made = gitport.init(scratch / "repository")
        commit = gitport.import_tree(made, tree, paths, f"vLLM {base}\n\nTree: sha256:{source.digest}\n")
        made.git_dir.rename(target)
    return commit


def _known(target: Path) -> str:
    """Return the base commit of an imported repository, or an empty text when it is missing or damaged."""
    if not (target / "HEAD").is_file():
        return ""
    try:
        commit = Git(target).line("rev-parse", "--verify", f"{BASE_REF}^{{commit}}")
    except CommandError:
        return ""
    return commit if all(map(_whole, target.glob("objects/pack/*.pack"))) else ""


def _whole(pack: Path) -> bool:
    """Tell whether a pack ends with the SHA-1 of its content, as git left it."""
    data = pack.read_bytes()
    return hashlib.sha1(data[:-20], usedforsecurity=False).digest() == data[-20:]
