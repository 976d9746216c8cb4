"""Decide what each fix is to each base, and lay a series over a base as git commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from seatrial.model.errors import CommandError, FixError, LockError, UsageError
from seatrial.model.fixes import AppliedFix, Verdict, VerdictKind
from seatrial.model.patches import with_fix_id
from seatrial.model.platforms import Platform
from seatrial.model.record import SkippedFix
from seatrial.model.series import FixStatus, LoadedFix, LoadedSeries, PatchedTree, StatusTable, series_digest
from seatrial.model.values import Frozen, Sha256, digest_of, parse_json
from seatrial.model.verdict import blocks, verdicts
from seatrial.ports import git as gitport
from seatrial.ports.console import Console
from seatrial.ports.examined import examine
from seatrial.ports.files import disk_errors, scratch_beside, write_atomic
from seatrial.ports.git import BASE_SETTING, Git
from seatrial.ports.trees import FolderTree, Source
from seatrial.ports.workspace import Workspace, explain, open_workspace

RECEIPT = "seatrial.json"
"""File inside the work tree's `.git` that says what was laid over what."""


class _Receipt(Frozen):
    inputs: Sha256
    tree: PatchedTree


def status(series: LoadedSeries, sources: Mapping[str, Path], *, cache: Path, console: Console) -> StatusTable:
    """Return the table of fixes by bases.

    Args:
        sources: upstream version to its pristine tree (archive or folder).
        cache: seatrial's cache folder; the imported trees are kept there.
    """
    columns: dict[str, dict[str, Verdict]] = {}
    for base, source in sources.items():
        pristine = Source(source)
        workspace = open_workspace(pristine, base, cache, console)
        rows = verdicts(series, base, workspace.commit, examine(series, pristine, cache), workspace.fit)
        columns[base] = {verdict.fix: verdict for verdict in rows}
    fixes = tuple(
        FixStatus(
            id=loaded.id,
            title=loaded.fix.title,
            kind=loaded.fix.kind,
            platforms=loaded.fix.platforms,
            verdicts=tuple(columns[base][loaded.id] for base in columns),
        )
        for loaded in series.ordered()
    )
    return StatusTable(bases=tuple(columns), fixes=fixes)


def apply_series(
    series: LoadedSeries,
    base: str,
    platform: Platform,
    source: Path,
    out: Path,
    *,
    cache: Path,
    console: Console,
    without: Collection[str] = (),
) -> PatchedTree:
    """Lay the fixes of a platform over a base: a git work tree at `out` whose commits are the fixes.

    Nothing appears at `out` before every fix is in and every detector is silent. A tree that is already there,
    made from the same inputs and not changed since, is kept.

    Args:
        base: upstream version.
        platform: whose fixes are meant.
        source: the pristine tree (archive or folder).
        out: folder to make; one that holds anything but an unchanged tree made here is refused.
        cache: seatrial's cache folder.
        without: fixes to leave out.

    Raises:
        UsageError: an unknown fix is left out, or one that another requires; or `out` is in use.
        FixError: a fix does not fit, or its defect is still there after it.
    """
    series.check_without(without)
    chosen = series.reduced(without)
    pristine = Source(source)
    workspace = open_workspace(pristine, base, cache, console)
    seen = examine(series, pristine, cache)
    everywhere = verdicts(series, base, workspace.commit, seen, workspace.fit)
    rows = verdicts(chosen, base, workspace.commit, seen, workspace.fit, platform=platform)
    _refuse_blocked(rows)
    skipped = _skipped(series, everywhere, rows, platform, without)
    plan = [[row.fix, row.kind.value, _patch_sha256(chosen, row)] for row in rows if row.findings]
    inputs = digest_of([workspace.commit, platform.name, plan, [row.model_dump(mode="json") for row in skipped]])
    known = _unchanged(out, inputs)
    if known is not None:
        console.detail(f"{out}: nothing changed, the fixes are in")
        return known
    with scratch_beside(out) as scratch, disk_errors(out):
        root = scratch / "tree"
        git = gitport.clone_into(workspace.git, root)
        git.run("config", BASE_SETTING, base)
        applied = tuple(_apply(git, chosen.fixes[row.fix], row, console) for row in rows if row.findings)
        _all_silent(root, chosen, applied)
        patched = _patched(git, workspace, platform, applied=applied, skipped=skipped, rows=rows).model_copy(
            update={"root": out}
        )
        receipt = _Receipt(inputs=inputs, tree=patched)
        write_atomic(root / ".git" / RECEIPT, receipt.model_dump_json(indent=1).encode())
        if out.exists():
            out.rename(scratch / "before")
        root.rename(out)
    return patched


def _patch_sha256(series: LoadedSeries, row: Verdict) -> str:
    patch = series.fixes[row.fix].patch(row.base)
    return patch.sha256 if patch else ""


def _refuse_blocked(rows: Sequence[Verdict]) -> None:
    for row in rows:
        if not blocks(row):
            continue
        if row.kind is VerdictKind.ORPHAN:
            do = "bring the required fix back, or rewrite this one"
        else:
            do = f"make patches/{row.fix}/{row.base}.patch anew (docs/fixes.md)"
        raise FixError(
            f"{row.fix} cannot be applied to base {row.base}: {row.kind.value}",
            why=row.reason,
            do=f"{do}; or build with the defect: --without {row.fix}",
        )


def _skipped(
    series: LoadedSeries,
    everywhere: Sequence[Verdict],
    rows: Sequence[Verdict],
    platform: Platform,
    without: Collection[str],
) -> tuple[SkippedFix, ...]:
    """Return the fixes that this tree does not hold, each with its reason."""
    judged = {row.fix: row for row in rows}
    skipped = []
    for row in everywhere:
        if row.fix in without:
            why = "left out by --without"
        elif not series.fixes[row.fix].suits(platform):
            why = f"meant for {', '.join(series.fixes[row.fix].fix.platforms)}"
        elif judged[row.fix].findings:
            continue
        else:
            why = judged[row.fix].reason
        skipped.append(SkippedFix(id=row.fix, verdict=row.kind, why=why))
    return tuple(skipped)


def _unchanged(out: Path, inputs: str) -> PatchedTree | None:
    """Return the tree at `out` if it is the one wanted; None if a new one may be put there.

    Raises:
        UsageError: `out` holds something that was not made here, or was changed since.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    path = out / ".git" / RECEIPT
    if not path.is_file():
        raise UsageError(f"{out} holds other things", do="name a folder that is new or empty")
    receipt = parse_json(_Receipt, path.read_bytes(), str(path))
    git = Git(out / ".git", out)
    if git.line("rev-parse", "HEAD") != receipt.tree.commit or git.line("status", "--porcelain"):
        raise UsageError(
            f"{out} was changed since the fixes were applied",
            why="it has other commits or uncommitted changes",
            do=f"seatrial export {out}, or move it away",
        )
    return receipt.tree.model_copy(update={"root": out}) if receipt.inputs == inputs else None


def set_aside(out: Path, console: Console) -> None:
    """Move a tree that is not as it was left here out of the way and say where to; nobody's work is thrown away.

    Raises:
        DiskError: the folder cannot be written.
    """
    try:
        _unchanged(out, "")
    except (UsageError, LockError, CommandError) as error:
        number = 1
        while (target := out.with_name(f"{out.name}.edited-{number}")).exists():
            number += 1
        with disk_errors(out):
            out.rename(target)
        console.line(f"  {error.what}: moved to {target}")


def _apply(git: Git, loaded: LoadedFix, row: Verdict, console: Console) -> AppliedFix:
    """Apply one fix as one commit and look again for its defect."""
    patch = loaded.patch(row.base)
    if patch is None or git.work_tree is None:
        raise FixError(f"{loaded.id} has no patch for {row.base}")
    before = git.line("rev-parse", "HEAD")
    try:
        git.run(*_AM, stdin=with_fix_id(patch.data, loaded.id))
    except CommandError as error:
        why = explain(patch, error.output)
        raise FixError(f"patches/{patch.path} does not apply", why=why, do="make it anew (docs/fixes.md)") from None
    if git.line("rev-list", "--count", f"{before}..HEAD") != "1":
        raise FixError(f"patches/{patch.path} made no commit", why="the base has its change already", do="remove it")
    left = loaded.examine(FolderTree(git.work_tree)).findings
    if left:
        raise FixError(
            f"the defect of {loaded.id} is still there after its patch",
            why="; ".join(f"{found.path}:{found.line} {found.message}" for found in left[:3]),
            do=f"complete patches/{patch.path}, or mend patches/{loaded.id}/defect.py",
        )
    console.detail(f"applied {loaded.id} ({row.kind.value}{', ' + row.reason if row.reason else ''})")
    return AppliedFix(
        id=loaded.id,
        title=loaded.fix.title,
        kind=loaded.fix.kind,
        verdict=row.kind,
        patch_sha256=patch.sha256,
        files=patch.files,
    )


_AM = ("am", "--quiet", "--3way", "--keep", "--keep-cr")


def _all_silent(root: Path, series: LoadedSeries, applied: Sequence[AppliedFix]) -> None:
    """Look once more with every detector: a later fix must not bring an earlier one's defect back."""
    tree = FolderTree(root)
    for fix in applied[:-1]:
        left = series.fixes[fix.id].examine(tree).findings
        if left:
            raise FixError(
                f"the defect of {fix.id} is back after the fixes that follow it",
                why=f"{left[0].path}:{left[0].line} {left[0].message}",
                do="mend the later fix",
            )


def _patched(
    git: Git,
    workspace: Workspace,
    platform: Platform,
    *,
    applied: tuple[AppliedFix, ...],
    skipped: tuple[SkippedFix, ...],
    rows: tuple[Verdict, ...],
) -> PatchedTree:
    words = git.names("diff", "--name-status", "-z", "--no-renames", workspace.commit, "HEAD")
    marks = dict(zip(words[1::2], words[::2], strict=True))
    return PatchedTree(
        root=git.git_dir.parent,
        base=workspace.base,
        platform=platform.name,
        base_commit=workspace.commit,
        commit=git.line("rev-parse", "HEAD"),
        applied=applied,
        skipped=skipped,
        verdicts=rows,
        series_sha256=series_digest(applied),
        changed=tuple(sorted(path for path, mark in marks.items() if mark != "D")),
        added=tuple(sorted(path for path, mark in marks.items() if mark == "A")),
        removed=tuple(sorted(path for path, mark in marks.items() if mark == "D")),
    )
