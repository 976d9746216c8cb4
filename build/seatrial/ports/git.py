"""Git, shut off from whatever the user or the machine has configured.

No configuration file is read but a repository's own, and repositories are made without a template: no hooks, no
signing, no conversion of line ends.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from seatrial.model.errors import CommandError, DiskError, UnsupportedError
from seatrial.ports.process import Completed, run
from seatrial.ports.trees import SourceTree

OLDEST = (2, 34)
"""The first release whose `git apply` takes --cached and --3way together reliably."""

WHO = "seatrial"
MAIL = "seatrial@localhost"
WHEN = "946684800 +0000"
"""Committer and date of every commit made here, so that the same content has the same commit id."""

LIMIT = 300.0
"""Seconds that one git command may take."""

BASE_REF = "refs/seatrial/base"
"""Where every repository made here keeps the pristine tree."""

BASE_SETTING = "seatrial.base"
"""Setting of a work tree that says which upstream version its base is."""

ATTRIBUTES = b"* -text !eol -ident -filter -working-tree-encoding !diff !merge !export-ignore !export-subst\n"
"""Overrides a tree's own .gitattributes: bytes stay bytes, and hunk headers do not depend on the file type."""

FORMAT_PATCH = (
    "format-patch",
    "--stdout",
    "-1",
    "--keep-subject",
    "--zero-commit",
    "--no-signature",
    "--no-stat",
    "--full-index",
    "--binary",
    "--no-renames",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-notes",
    "--no-base",
    "--no-thread",
    "--no-attach",
    "--no-cover-letter",
    "--encode-email-headers",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "-O/dev/null",
)
"""One commit to bytes that depend on the commit alone: no commit id, no git version, no statistics.

Blobs are named in full, so that a three-way merge finds them; renames are written as remove and add, because
what counts as a rename differs between releases of git.
"""

_DISK = re.compile(
    rb"No space left|Out of diskspace|quota exceeded|Read-only file system|permission denied|insufficient permission",
    re.I,
)
"""What git says when it cannot write."""

_SETTINGS = {
    "core.excludesFile": os.devnull,
    "core.quotePath": "false",
    "core.compression": "1",
    "core.logAllRefUpdates": "false",
    "fastimport.unpackLimit": "1",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "safe.directory": "*",
    "advice.detachedHead": "false",
}


class Git:
    """One repository, with or without a work tree.

    Args:
        git_dir: the repository itself (`.git`, or a bare one).
        work_tree: where files are checked out.
        index: another index file than the repository's own.
    """

    def __init__(self, git_dir: Path, work_tree: Path | None = None, *, index: Path | None = None) -> None:
        self.git_dir = git_dir
        self.work_tree = work_tree
        self._index = index

    def run(
        self, *args: str, stdin: bytes | None = None, check: bool = True, env: Mapping[str, str] | None = None
    ) -> Completed:
        """Run a git command on this repository."""
        where = [f"--git-dir={self.git_dir}"]
        if self.work_tree is not None:
            where.append(f"--work-tree={self.work_tree}")
        more = dict(env or {})
        if self._index is not None:
            more["GIT_INDEX_FILE"] = str(self._index)
        return run_git(*where, *args, cwd=self.work_tree, stdin=stdin, check=check, env=more)

    def line(self, *args: str) -> str:
        """Run a git command and return what it printed, without the final newline."""
        return self.run(*args).text.rstrip("\n")

    def names(self, *args: str) -> tuple[str, ...]:
        """Run a git command with NUL-separated output and return its items."""
        return tuple(item for item in self.run(*args).text.split("\0") if item)

    @contextmanager
    def scratch_index(self) -> Iterator[Git]:
        """Give the same repository with an empty index of its own, removed at the end."""
        with tempfile.TemporaryDirectory(prefix="seatrial-index-") as folder:
            yield Git(self.git_dir, index=Path(folder) / "index")


def run_git(
    *args: str, cwd: Path | None = None, stdin: bytes | None = None, check: bool = True, env: Mapping[str, str]
) -> Completed:
    """Run git with no configuration but this module's, and no variable that could point it elsewhere."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    surroundings: dict[str, str | None] = {name: None for name in os.environ if name.startswith("GIT_")}
    surroundings |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": WHO,
        "GIT_AUTHOR_EMAIL": MAIL,
        "GIT_AUTHOR_DATE": WHEN,
        "GIT_COMMITTER_NAME": WHO,
        "GIT_COMMITTER_EMAIL": MAIL,
        "GIT_COMMITTER_DATE": WHEN,
        "LC_ALL": "C",
        **env,
    }
    done = run(["git", *settings, *args], timeout=LIMIT, cwd=cwd, env=surroundings, stdin=stdin, check=False)
    if done.status == 0 or (done.status == 1 and not check and not _DISK.search(done.stderr)):
        return done
    said = done.stderr.decode(errors="replace").strip()
    first = said.partition("\n")[0]
    if _DISK.search(done.stderr):
        raise DiskError("git could not write", why=first, do="make room, or mend the folder's owner and mode")
    raise CommandError(f"git ended with status {done.status}", why=first, status=done.status, output=said)


def need_git() -> None:
    """Raise UnsupportedError when git is older than what this module relies on."""
    text = run_git("version", env={}).text.strip()
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise UnsupportedError(
            f"git is too old: {text}", why=f"{OLDEST[0]}.{OLDEST[1]} or newer is needed", do="install a newer git"
        )


def init(git_dir: Path, *, work_tree: Path | None = None) -> Git:
    """Make an empty repository without template, hooks or any path of this machine in its configuration."""
    bare = [] if work_tree else ["--bare"]
    run_git("init", "--quiet", "--template=", "--initial-branch=series", *bare, str(work_tree or git_dir), env={})
    info = git_dir / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_bytes(ATTRIBUTES)
    return Git(git_dir, work_tree)


def import_tree(git: Git, tree: SourceTree, paths: tuple[str, ...], message: str) -> str:
    """Commit files of a tree as the repository's pristine base and return the commit id.

    The id depends on the files and the message alone.
    """
    git.run("fast-import", "--quiet", "--date-format=raw", stdin=_fast_import(tree, paths, message))
    return git.line("rev-parse", "--verify", f"{BASE_REF}^{{commit}}")


def _fast_import(tree: SourceTree, paths: tuple[str, ...], message: str) -> bytes:
    text = message.encode()
    out = [
        f"commit {BASE_REF}\n".encode(),
        f"author {WHO} <{MAIL}> {WHEN}\ncommitter {WHO} <{MAIL}> {WHEN}\n".encode(),
        b"data %d\n%s\n" % (len(text), text),
    ]
    for path in paths:
        data = tree.read(path)
        mode = b"100755" if tree.executable(path) else b"100644"
        quoted = path.replace("\\", "\\\\").replace('"', '\\"').encode()
        out += [b'M %s inline "%s"\ndata %d\n' % (mode, quoted, len(data)), data, b"\n"]
    out.append(b"done\n")
    return b"feature done\n" + b"".join(out)


def clone_into(source: Git, target: Path) -> Git:
    """Make a repository with its own copy of another's objects (hard links on one file system) and a work tree.

    The branch `series` stands at the pristine base, checked out.
    """
    run_git(
        "clone",
        "--quiet",
        "--template=",
        "--no-checkout",
        "--no-tags",
        str(source.git_dir),
        str(target),
        env={},
    )
    git = init(target / ".git", work_tree=target)
    git.run("remote", "remove", "origin")
    base = source.line("rev-parse", "--verify", f"{BASE_REF}^{{commit}}")
    git.run("update-ref", BASE_REF, base)
    git.run("checkout", "--quiet", "-B", "series", base)
    return git
