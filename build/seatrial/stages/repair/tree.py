"""Repair every source of a tree, all or none; write it back, or as a patch that `git am` takes."""

from __future__ import annotations

import ast
import re
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from seatrial.model.errors import DiskError, UsageError
from seatrial.model.modules import parse
from seatrial.model.scratch import worth_parsing
from seatrial.model.tree import Tree
from seatrial.ports.files import write_atomic
from seatrial.ports.git import FORMAT_PATCH, Git, import_tree, init, need_git
from seatrial.ports.trees import open_tree
from seatrial.stages.repair.delegates import GIVEN
from seatrial.stages.repair.edits import Refusal
from seatrial.stages.repair.sources import Rewritten, prove, rewrite_source

LOADERS = "vllm/model_executor/model_loader/"
_BUILT = re.compile(rb"with set_default_torch_dtype\(\s*(?:self\.)?(?:vllm_config\.)?model_config\.dtype\s*\)")
"""How vLLM's loaders make a model: the default dtype is the model's, parameters without a dtype take it."""
MESSAGE = """Let scratch tensors of Gated DeltaNet layers follow the model's dtype

Description: scratch tensors were allocated as float16 whatever the model's
 dtype was, and met its parameters in kernels that want one dtype. They follow
 the model now; kernels that take float16 alone are called for float16 alone;
 the operator is given one dtype or not called.
Origin: vendor
Forwarded: not-needed
"""


def repair_tree(root: Path) -> tuple[Rewritten, ...]:
    """Return what becomes of every source of a tree that has the defect; nothing is written.

    Raises:
        UsageError: there is no folder with a vLLM tree at `root`.
        IntegrityError: a source is no Python; says where.
    """
    if root.is_file():
        raise UsageError(
            f"{root} is no folder", why="a repair rewrites files in place", do="unpack it and name the folder"
        )
    tree = open_tree(root)
    paths = [path for path in tree.paths() if path.startswith("vllm/") and path.endswith(".py")]
    built = any(_BUILT.search(tree.read(path)) for path in paths if path.startswith(LOADERS))

    def read(path: str) -> ast.Module | None:
        data = tree.read(path) if tree.has(path) else b""
        return parse(data, path) if worth_parsing(data, path) else None

    found = []
    for path in paths:
        data = tree.read(path)
        if worth_parsing(data, path):
            one = rewrite_source(data, path, built_in_dtype=built, read=read)
            if one.refusals or one.after != one.before:
                found.append(one)
    if any(one.refusals for one in found):
        return tuple(found)
    after = {one.path: one.after for one in found}

    def read_after(path: str) -> ast.Module | None:
        return parse(after[path], path) if path in after else read(path)

    return tuple(_with_overrides(tree, paths, [prove(one, read_after) for one in found]))


def _with_overrides(tree: Tree, paths: Sequence[str], found: Sequence[Rewritten]) -> list[Rewritten]:
    """Refuse overrides, in whatever module, of methods that are handed projected states and do not take them."""
    now = {one.path: one.after for one in found}
    opened = {name: one.path for one in found for name in one.opened}
    refusals: dict[str, list[Refusal]] = {}
    classes = {name.partition(".")[0] for name in opened}
    for path in paths if opened else ():
        data = now.get(path, tree.read(path))
        if not any(f"({cls}".encode() in data or f"{cls})".encode() in data for cls in classes):
            continue
        for node in parse(data, path).body:
            if isinstance(node, ast.ClassDef):
                for line, why in _deaf(node, opened):
                    refusals.setdefault(path, []).append(Refusal(path, line, why))
    kept = [one for one in found if one.path not in refusals]
    for path, some in refusals.items():
        data = tree.read(path)
        kept.append(Rewritten(path, data, data, tuple(some)))
    return kept


def _deaf(node: ast.ClassDef, opened: Iterable[str]) -> list[tuple[int, str]]:
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    found = []
    for name in opened:
        cls, _, method = name.partition(".")
        for item in node.body:
            if cls in bases and isinstance(item, ast.FunctionDef) and item.name == method:
                taken = {arg.arg for arg in [*item.args.args, *item.args.kwonlyargs]}
                if GIVEN not in taken and item.args.kwarg is None:
                    found.append((item.lineno, f"{node.name}.{method} overrides {name} and does not take {GIVEN}"))
    return found


def write_tree(root: Path, rewritten: Iterable[Rewritten]) -> None:
    """Write repaired sources back: all of them, or none.

    Modules go before those that import them: what a killed process leaves is repaired to the end by the next run, which
    could not tell the dtype of a base class's buffers otherwise.

    Raises:
        DiskError: a file is read-only, or cannot be written.
    """
    rewritten = _imported_first(rewritten)
    modes = {}
    for one in rewritten:
        mode = stat.S_IMODE((root / one.path).stat().st_mode)
        if not mode & stat.S_IWUSR:
            raise DiskError(f"{root / one.path} is read-only", why="nothing was written", do="make it writable")
        modes[one.path] = mode
    done: list[Rewritten] = []
    try:
        for one in rewritten:
            write_atomic(root / one.path, one.after, mode=modes[one.path])
            done.append(one)
    except BaseException:
        for one in done:
            write_atomic(root / one.path, one.before, mode=modes[one.path])
        raise


def _imported_first(rewritten: Iterable[Rewritten]) -> tuple[Rewritten, ...]:
    left = list(rewritten)
    found: list[Rewritten] = []
    while left:
        ready = [one for one in left if not any(_imports(one, other) for other in left if other is not one)] or left[:1]
        found += ready
        left = [one for one in left if one not in ready]
    return tuple(found)


def _imports(one: Rewritten, other: Rewritten) -> bool:
    stem = re.escape(Path(other.path).stem).encode()
    return re.search(rb"^\s*from\s+[\w.]*\b" + stem + rb"\s+import\b", one.before, re.MULTILINE) is not None


class _Touched:
    """The sources that a repair touches, as they were."""

    origin = "the sources before the repair"

    def __init__(self, root: Path, rewritten: Iterable[Rewritten]) -> None:
        self._tree = open_tree(root)
        self._before = {one.path: one.before for one in rewritten}

    def paths(self) -> Iterable[str]:
        return sorted(self._before)

    def has(self, path: str) -> bool:
        return path in self._before

    def read(self, path: str) -> bytes:
        return self._before[path]

    def executable(self, path: str) -> bool:
        return self._tree.executable(path)

    def digest(self) -> str:
        return self._tree.digest()


def write_patch(file: Path, root: Path, rewritten: Sequence[Rewritten]) -> None:
    """Write a repair as one commit in the form that `git am` takes; the same bytes for the same sources.

    Raises:
        UnsupportedError: git is too old.
        DiskError: the file cannot be written.
    """
    need_git()
    touched = _Touched(root, rewritten)
    with tempfile.TemporaryDirectory(prefix="seatrial-repair-") as folder:
        git = init(Path(folder) / "repair.git")
        base = import_tree(git, touched, tuple(touched.paths()), "before the repair")
        with git.scratch_index() as index:
            index.run("read-tree", base)
            for one in rewritten:
                blob = git.run("hash-object", "-w", "--stdin", stdin=one.after).text.strip()
                mode = "100755" if touched.executable(one.path) else "100644"
                index.run("update-index", "--cacheinfo", f"{mode},{blob},{one.path}")
            made = index.line("write-tree")
        commit = git.run("commit-tree", made, "-p", base, stdin=MESSAGE.encode()).text.strip()
        data = _patch(git, commit)
    write_atomic(file, data)


def _patch(git: Git, commit: str) -> bytes:
    return git.run(*FORMAT_PATCH, commit).stdout
