"""Write the commits of a work tree back as the patches that they came from."""

from __future__ import annotations

from pathlib import Path

from seatrial.model.errors import CommandError, LockError, UsageError
from seatrial.model.patches import TRAILER, check_form, take_fix_id, touched_paths
from seatrial.model.series import ExportedPatch, LoadedSeries
from seatrial.ports.files import write_atomic
from seatrial.ports.git import BASE_REF, BASE_SETTING, FORMAT_PATCH, Git


def export(work_tree: Path, series: LoadedSeries, patches_dir: Path) -> tuple[ExportedPatch, ...]:
    """Write each commit above the pristine base to `patches/<fix>/<base>.patch`.

    A commit says which fix it is by the trailer `Seatrial-Fix: <id>` (put there by `apply`, not exported).
    Patches of fixes that have no commit here are left alone, and none is written before all are made.

    Raises:
        UsageError: the folder was not made by `apply`, has uncommitted changes or no commits, or they are not
            one a fix in the order of the series.
        LockError: a commit's message has no DEP-3 header.
        FixError: a commit makes a link.
    """
    git = Git(work_tree / ".git", work_tree)
    try:
        start = git.line("rev-parse", "--verify", "--quiet", f"{BASE_REF}^{{commit}}")
        base = git.line("config", "--get", BASE_SETTING)
    except CommandError:
        raise UsageError(f"{work_tree} was not made by seatrial apply", do="make it with that") from None
    if git.line("status", "--porcelain", "--untracked-files=no"):
        raise UsageError(f"{work_tree} has uncommitted changes", do="commit them into the fix that they belong to")
    commits = git.line("rev-list", "--reverse", "--first-parent", f"{start}..HEAD").split()
    if not commits:
        raise UsageError(
            f"{work_tree} has no commit above its base, so there is nothing to write",
            do=f"commit each fix, with a last line `{TRAILER}: <id>` in its message",
        )
    found: dict[str, bytes] = {}
    last = -1
    for commit in commits:
        fix_id, data = _one(git, commit)
        position = series.series.position(fix_id)
        if fix_id in found:
            raise UsageError(f"two commits are of {fix_id}", do="squash them: git rebase -i --autosquash")
        if position < last:
            raise UsageError(
                f"{fix_id} is not in the order of patches/series.toml", do="reorder the commits, or the file"
            )
        last = position
        found[fix_id] = data
    return tuple(_write(patches_dir / fix_id / f"{base}.patch", data) for fix_id, data in found.items())


def _one(git: Git, commit: str) -> tuple[str, bytes]:
    """Return a commit's fix and its patch in the form that is kept."""
    parents = git.line("rev-list", "--parents", "-1", commit).split()[1:]
    if len(parents) != 1:
        raise UsageError(f"commit {commit[:12]} is a merge", do="rebase it to one commit a fix")
    fields = git.run("log", "-1", "--date=raw", "--format=%an%x00%ae%x00%ad%x00%T%x00%B", commit).text.split("\0", 4)
    name, mail, date, tree, whole = fields
    fix_id, message = take_fix_id(whole)
    if not fix_id:
        raise UsageError(f"commit {commit[:12]} names no fix", do=f"add a last line `{TRAILER}: <id>` to its message")
    author = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": mail, "GIT_AUTHOR_DATE": date}
    made = git.run("commit-tree", tree, "-p", parents[0], stdin=message.encode(), env=author).text.strip()
    data = git.run(*FORMAT_PATCH, made).stdout
    origin = f"commit {commit[:12]} ({fix_id})"
    try:
        check_form(data, origin)
    except LockError as error:
        raise LockError(error.what, why=error.why, do="amend the commit's message (docs/fixes.md)") from None
    touched_paths(data, origin)
    return fix_id, data


def _write(path: Path, data: bytes) -> ExportedPatch:
    same = path.is_file() and path.read_bytes() == data
    if not same:
        write_atomic(path, data)
    return ExportedPatch(path=f"{path.parent.name}/{path.name}", changed=not same)
