"""The patched tree and the locks: fixes that are not in, and content that is not the tag's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from seatrial.flow.naming import policy_of
from seatrial.model.errors import SeatrialError
from seatrial.stages.check import check
from seatrial.stages.fixes import apply_series
from seatrial.stages.lock_base import load_base
from tests.faults.good import Good
from tests.faults.judge import judged_by, quiet
from tests.faults.model import Fault, Judged

STATE, TOKEN = "vllm/platforms/cpu.py", "vllm/v1/attention/backends/gdn_attn.py"


@contextmanager
def copied(root: Path, good: Good) -> Iterator[Path]:
    """Give a copy of a tree whose files are links to the first one's: replace one, never write into it."""
    with tempfile.TemporaryDirectory(dir=good.scratch) as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(root, tree, copy_function=os.link, ignore=shutil.ignore_patterns(".git"), symlinks=True)
        yield tree


def replaced(path: Path, data: bytes) -> None:
    """Put other bytes at a path without touching the file that it was linked to."""
    path.unlink()
    path.write_bytes(data)


def unfixed(*names: str) -> Callable[[Good], Judged]:
    """Bring files back as they were before their fixes, and run the detectors as `seatrial check` does."""

    def judge(good: Good) -> Judged:
        with copied(good.tree.root, good) as tree:
            for name in names:
                replaced(tree / name, good.pristine(name))
            seen = check(tree, good.plan.series)
        return Judged(
            tuple(one.fix for one in seen.findings),
            tuple(f"{one.path}:{one.line}: {one.message}" for one in seen.findings),
        )

    return judge


def left_out(good: Good) -> Judged:
    """Leave a fix out although its defect is there, and ask the gate with all reports good."""
    return _gate(good, good.pristine_tree(), without=("gdn-state-dtype",))


def drifted(good: Good) -> Judged:
    """Offer a base whose lines around a fix have changed, so that its patch fits nowhere."""
    with copied(good.pristine_tree(), good) as tree:
        path = tree / STATE
        replaced(path, path.read_bytes().replace(b"# AMX GDN requires float32 state", b"# AMX GDN wants float32 state"))
        return _gate(good, tree)


def _gate(good: Good, source: Path, *, without: tuple[str, ...] = ()) -> Judged:
    with tempfile.TemporaryDirectory(dir=good.scratch) as folder:
        try:
            tree = apply_series(
                good.plan.series,
                good.plan.lock.version,
                good.plan.platform,
                source,
                Path(folder) / "tree",
                cache=good.shop.cache.root,
                console=quiet(),
                without=without,
            )
        except SeatrialError as error:
            return Judged((error.label,), (f"{error.what}: {error.why}",))
    asked = replace(good, policy=policy_of(good.plan, tree.skipped))
    return judged_by(asked.decide(good.digest), asked)


def edited_lock(old: str, new: Callable[[Good], str]) -> Callable[[Good], Judged]:
    """Edit the lock of the base by hand, and read it as a build does."""

    def judge(good: Good) -> Judged:
        source = good.shop.project.bases / f"{good.plan.lock.version}.toml"
        text = source.read_text()
        value = getattr(good.plan.lock.source, old) if hasattr(good.plan.lock.source, old) else old
        if str(value) not in text:
            raise LookupError(f"{value} is not in the lock")
        with tempfile.TemporaryDirectory(dir=good.scratch) as folder:
            (Path(folder) / source.name).write_text(text.replace(str(value), new(good), 1))
            try:
                load_base(Path(folder), good.plan.lock.version)
            except SeatrialError as error:
                return Judged((error.label,), (f"{error.what}: {error.why}",))
        return Judged((), ())

    return judge


TREE_FAULTS: tuple[Fault, ...] = (
    Fault(
        "tree-state-dtype",
        38,
        "dtype",
        "gdn-state-dtype",
        (STATE,),
        "right in one data type, a mismatch in the other: the state's fix is not in the tree",
        judge=unfixed(STATE),
        subject="tree",
    ),
    Fault(
        "tree-one-token",
        37,
        "wrong output",
        "gdn-one-token-prompt",
        (TOKEN,),
        "wrong text at one length: the fix for prompts of one token is not in the tree",
        judge=unfixed(TOKEN),
        subject="tree",
    ),
    Fault(
        "tree-left-out",
        42,
        "stale",
        "left-out",
        ("gdn-state-dtype",),
        "a build left a fix out and everything else passed",
        judge=left_out,
        subject="tree",
    ),
    Fault(
        "tree-drift",
        42,
        "stale",
        "fix",
        ("gdn-state-dtype", "does not fit", "vllm/platforms/cpu.py"),
        "the base moved under a patch, which then fits nowhere",
        judge=drifted,
        subject="tree",
    ),
    Fault(
        "lock-commit",
        43,
        "stale",
        "lock",
        ("0.28.0.toml",),
        "the lock's commit is another than its content was made from",
        judge=edited_lock("commit", lambda good: "3" * 40),
        subject="record",
    ),
    Fault(
        "lock-tag",
        43,
        "stale",
        "lock",
        ("0.28.0.toml",),
        "the lock's tag is the previous release's",
        judge=edited_lock("tag", lambda good: "v0.27.1"),
        subject="record",
    ),
)
