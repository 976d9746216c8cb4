"""Patches that go in and come out unchanged, under any configuration of the user's."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from seatrial.model.errors import FixError, LockError, UsageError
from seatrial.model.series import PatchedTree
from seatrial.ports.console import Console
from seatrial.stages.export import export
from seatrial.stages.fix_files import load_series
from seatrial.stages.fixes import apply_series
from tests import fixlab
from tests.fixlab import BASE, CPU, CURE, KERNEL, MESSAGE, PRISTINE, make_patch, replacing, write_fix, write_tree

WORDS = {"one": "BUG one", "two": "BUG two"}

WHO = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")

HOSTILE = """
[user]
    name = Somebody Else
    email = else@example.org
    signingkey = none
[commit]
    gpgsign = true
[core]
    autocrlf = true
    hooksPath = {hooks}
    quotePath = true
    attributesFile = {attributes}
[diff]
    noprefix = true
    algorithm = histogram
    context = 9
    renames = copies
[format]
    signature = someone
    useAutoBase = true
    numbered = true
    subjectPrefix = ODD
    attach = true
    signOff = true
    headers = "Organization: odd"
[am]
    keepcr = false
[apply]
    whitespace = fix
    ignoreWhitespace = change
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the user a configuration that would change commits, files and patches, and mark every use of its hooks."""
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for name in (
        "pre-commit",
        "applypatch-msg",
        "pre-applypatch",
        "post-checkout",
        "commit-msg",
        "reference-transaction",
    ):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {home}/hook-ran\nexit 1\n")
        (hooks / name).chmod(0o755)
    (home / "attributes").write_text("*.py ident eol=crlf text diff=python\n")
    (home / ".gitconfig").write_text(HOSTILE.format(hooks=hooks, attributes=home / "attributes"))
    return home


def under(home: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    """Set the environment that a hostile home, and a run inside a git hook, would have."""
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(elsewhere))
    monkeypatch.setenv("GIT_INDEX_FILE", str(elsewhere / "index"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=9")


def laid(root: Path, patch: bytes, *, files: dict[str, str] | None = None) -> PatchedTree:
    """Apply one patch in a new place."""
    folder = write_fix(root / "patches", fixlab.fix(parts=tuple(WORDS)), words=WORDS)
    (folder / f"{BASE}.patch").write_bytes(patch)
    source = write_tree(root / "base", PRISTINE | (files or {}))
    return again(root, source)


def again(root: Path, source: Path) -> PatchedTree:
    series = load_series(root / "patches")
    console = Console(out=io.StringIO(), ci=False)
    return apply_series(series, BASE, CPU, source, root / "tree", cache=root / "cache", console=console)


def exported(root: Path) -> tuple[bytes, bool]:
    """Export the tree over the patches and return the one patch's bytes and whether it changed."""
    (one,) = export(root / "tree", load_series(root / "patches"), root / "patches")
    return (root / "patches" / one.path).read_bytes(), one.changed


LONG = "Make the kernel's state follow the activation dtype, whatever the cache's dtype setting happens to be today\n"
MESSAGES = {
    "plain": MESSAGE,
    "brackets": "[Bugfix][CPU] " + MESSAGE,
    "umlaut": MESSAGE.replace("Because", "Für Ünïcode, because"),
    "long": LONG + MESSAGE.partition("\n")[2],
    "indented": MESSAGE.replace("Forwarded", "    code\n\n    more\n\nForwarded"),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_export_gives_the_same_bytes_back(tmp_path: Path, message: str) -> None:
    patch = make_patch(tmp_path / "author", PRISTINE, CURE, message=message)
    laid(tmp_path, patch)
    assert exported(tmp_path) == (patch, False)


def test_line_ends_binary_files_and_new_files_come_back(tmp_path: Path) -> None:
    files = {
        "vllm/dos.py": "one\r\ntwo\r\nthree\r\n",
        "vllm/data.bin": "\0\1\2" * 50,
    }

    def change(root: Path) -> None:
        CURE(root)
        (root / "vllm/dos.py").write_bytes(b"one\r\n2\r\nthree\r\n")
        (root / "vllm/data.bin").write_bytes(b"\0\1\3" * 50)
        (root / "vllm/run.sh").write_text("echo\n")
        (root / "vllm/run.sh").chmod(0o755)

    before = PRISTINE | files
    patch = make_patch(tmp_path / "author", before, change)
    laid(tmp_path, patch, files=files | {".gitattributes": "*.py text eol=crlf ident\n"})
    assert exported(tmp_path) == (patch, False)
    assert (tmp_path / "tree/vllm/dos.py").read_bytes() == b"one\r\n2\r\nthree\r\n"
    assert (tmp_path / "tree" / KERNEL).read_bytes().count(b"\r") == 0


def test_a_renamed_file_is_exported_as_removed_and_added(tmp_path: Path) -> None:
    def change(root: Path) -> None:
        CURE(root)
        (root / "vllm/other.py").rename(root / "vllm/renamed.py")

    patch = make_patch(tmp_path / "author", PRISTINE, change)
    patched = laid(tmp_path, patch)
    assert (patched.added, patched.removed) == (("vllm/renamed.py",), ("vllm/other.py",))
    assert exported(tmp_path) == (patch, False)


def test_the_users_git_configuration_changes_nothing(
    tmp_path: Path, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = make_patch(tmp_path / "author", PRISTINE, CURE)
    calm = laid(tmp_path / "calm", patch)
    who = fixlab.git(tmp_path / "calm/tree", "log", "-1", "--format=%an %cn %ce %ct").decode()
    assert who == "Ann Author seatrial seatrial@localhost 946684800\n"
    under(hostile, monkeypatch, tmp_path / "author" / ".git")
    before = sorted(path.name for path in (tmp_path / "author" / ".git").rglob("*"))
    stormy = laid(tmp_path / "stormy", patch)
    assert (stormy.commit, stormy.base_commit) == (calm.commit, calm.base_commit)
    assert exported(tmp_path / "stormy") == (patch, False)
    assert not (hostile / "hook-ran").exists()
    assert str(tmp_path) not in (tmp_path / "stormy/tree/.git/config").read_text()
    assert sorted(path.name for path in (tmp_path / "author" / ".git").rglob("*")) == before


def test_an_author_amends_a_fix_and_exports_it(tmp_path: Path) -> None:
    laid(tmp_path, make_patch(tmp_path / "author", PRISTINE, CURE))
    tree = tmp_path / "tree"
    replacing(KERNEL, ("line 30\n", "line thirty\n"))(tree)
    with pytest.raises(UsageError, match="uncommitted"):
        exported(tmp_path)
    fixlab.git(tree, *WHO, "commit", "--quiet", "--all", "--amend", "--no-edit")
    patch, changed = exported(tmp_path)
    assert changed
    assert b"+line thirty\n" in patch
    assert b"Seatrial-Fix" not in patch
    assert exported(tmp_path) == (patch, False)
    (tmp_path / "tree").rename(tmp_path / "mine")
    again(tmp_path, tmp_path / "base")
    assert exported(tmp_path) == (patch, False)


def commit(tree: Path, message: str, line: str) -> None:
    replacing(KERNEL, (line, "changed\n"))(tree)
    fixlab.git(tree, *WHO, "commit", "--quiet", "--all", "-F", "-", stdin=message.encode())


def test_commits_that_are_not_one_a_fix_are_refused(tmp_path: Path) -> None:
    laid(tmp_path, make_patch(tmp_path / "author", PRISTINE, CURE))
    tree = tmp_path / "tree"
    fixlab.git(tree, "branch", "good")
    for message, error, said in (
        (MESSAGE, UsageError, "names no fix"),
        (MESSAGE + "\nSeatrial-Fix: bug\n", UsageError, "two commits are of bug"),
        (MESSAGE + "\nSeatrial-Fix: nope\n", UsageError, "there is no fix 'nope'"),
    ):
        commit(tree, message, "line 1\n")
        with pytest.raises(error, match=said):
            exported(tmp_path)
        fixlab.git(tree, "reset", "--quiet", "--hard", "good")
    fixlab.git(tree, "reset", "--quiet", "--hard", "refs/seatrial/base")
    fixlab.git(tree, *WHO, "merge", "--quiet", "--no-ff", "-m", MESSAGE + "\nSeatrial-Fix: bug\n", "good")
    with pytest.raises(UsageError, match="is a merge"):
        exported(tmp_path)
    fixlab.git(tree, "reset", "--quiet", "--hard", "refs/seatrial/base")
    commit(tree, "No header\n\nSeatrial-Fix: bug\n", "line 1\n")
    with pytest.raises(LockError, match="no Description"):
        exported(tmp_path)


def test_commits_out_of_order_are_refused(tmp_path: Path) -> None:
    laid(tmp_path, make_patch(tmp_path / "author", PRISTINE, CURE))
    write_fix(tmp_path / "patches", fixlab.fix("later"), words={})
    tree = tmp_path / "tree"
    commit(tree, MESSAGE + "\nSeatrial-Fix: later\n", "line 1\n")
    exports = export(tree, load_series(tmp_path / "patches"), tmp_path / "patches")
    assert [one.path for one in exports] == [f"bug/{BASE}.patch", f"later/{BASE}.patch"]
    assert [one.changed for one in exports] == [False, True]
    (tmp_path / "patches/series.toml").write_text('fixes = ["later", "bug"]\n')
    with pytest.raises(UsageError, match="later is not in the order"):
        export(tree, load_series(tmp_path / "patches"), tmp_path / "patches")


def test_a_folder_that_apply_did_not_make_is_refused(tmp_path: Path) -> None:
    write_fix(tmp_path / "patches", fixlab.fix(), words=WORDS)
    series = load_series(tmp_path / "patches")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="not made by seatrial apply"):
            export(folder, series, tmp_path / "patches")


def test_a_tree_without_a_commit_is_refused(tmp_path: Path) -> None:
    laid(tmp_path, make_patch(tmp_path / "author", PRISTINE, CURE))
    fixlab.git(tmp_path / "tree", "reset", "--quiet", "--hard", "refs/seatrial/base")
    with pytest.raises(UsageError, match="no commit above its base"):
        export(tmp_path / "tree", load_series(tmp_path / "patches"), tmp_path / "patches")


def test_a_commit_that_makes_a_link_is_refused(tmp_path: Path) -> None:
    laid(tmp_path, make_patch(tmp_path / "author", PRISTINE, CURE))
    tree = tmp_path / "tree"
    (tree / "vllm/link.py").symlink_to("kernel.py")
    fixlab.git(tree, "add", "vllm/link.py")
    fixlab.git(tree, *WHO, "commit", "--quiet", "--amend", "--no-edit")
    with pytest.raises(FixError, match="symbolic link"):
        exported(tmp_path)
