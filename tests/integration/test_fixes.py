"""Verdicts and application over real git and synthetic trees."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from seatrial.model.errors import DiskError, FixError, UsageError
from seatrial.model.fixes import Kind, VerdictKind
from seatrial.model.platforms import Platform
from seatrial.model.series import PatchedTree
from seatrial.ports.console import Console
from seatrial.stages.fix_files import load_series
from seatrial.stages.fixes import apply_series, status
from tests import fixlab
from tests.fixlab import BASE, CPU, CURE, KERNEL, PRISTINE, XPU, make_patch, replacing, write_fix, write_tree

WORDS = {"one": "BUG one", "two": "BUG two"}


class Lab:
    """A patches folder, a base and a cache in one temporary place."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.patches = root / "patches"
        self.source = write_tree(root / "base")
        self.cache = root / "cache"
        self.out = root / "out" / "tree"
        self.said = io.StringIO()
        self.console = Console(out=self.said, ci=False)
        self.made = 0

    def fix(
        self,
        fix_id: str,
        *,
        change: Callable[[Path], None] | None = CURE,
        before: Mapping[str, str] = PRISTINE,
        words: Mapping[str, str] = WORDS,
        path: str = KERNEL,
        **more: Any,
    ) -> Path:
        folder = write_fix(self.patches, fixlab.fix(fix_id, parts=tuple(words), **more), words=words, path=path)
        if change is not None:
            self.made += 1
            (folder / f"{BASE}.patch").write_bytes(make_patch(self.root / f"author-{self.made}", before, change))
        return folder

    def kinds(self) -> dict[str, VerdictKind]:
        table = status(load_series(self.patches), {BASE: self.source}, cache=self.cache, console=self.console)
        return {row.id: row.verdicts[0].kind for row in table.fixes}

    def apply(self, *, without: tuple[str, ...] = (), platform: Platform = CPU) -> PatchedTree:
        return apply_series(
            load_series(self.patches),
            BASE,
            platform,
            self.source,
            self.out,
            cache=self.cache,
            console=self.console,
            without=without,
        )


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_fix_that_fits_is_applied_and_silences_its_detector(lab: Lab) -> None:
    lab.fix("bug")
    assert lab.kinds() == {"bug": VerdictKind.APPLIES}
    patched = lab.apply()
    assert (patched.changed, patched.added, patched.removed) == ((KERNEL,), (), ())
    assert (lab.out / KERNEL).read_text() == PRISTINE[KERNEL].replace("BUG", "cured")
    assert [one.id for one in patched.applied] == ["bug"]


def test_added_and_removed_files_are_told_apart(lab: Lab) -> None:
    def change(root: Path) -> None:
        CURE(root)
        (root / "vllm/new.py").write_text("new\n")
        (root / "vllm/other.py").unlink()

    lab.fix("bug", change=change)
    patched = lab.apply()
    assert patched.changed == (KERNEL, "vllm/new.py")
    assert patched.added == ("vllm/new.py",)
    assert patched.removed == ("vllm/other.py",)


def test_a_base_without_the_code_needs_no_fix(lab: Lab) -> None:
    lab.fix("bug", path="vllm/elsewhere.py")
    assert lab.kinds() == {"bug": VerdictKind.NOT_PRESENT}
    patched = lab.apply()
    assert patched.applied == ()
    assert patched.commit == patched.base_commit
    assert patched.skipped[0].verdict is VerdictKind.NOT_PRESENT


def test_a_base_that_has_the_cure_is_upstream(lab: Lab) -> None:
    lab.fix("bug")
    CURE(lab.source)
    assert lab.kinds() == {"bug": VerdictKind.UPSTREAM}
    assert lab.apply().applied == ()


def test_half_mended_is_partly_and_still_applied(lab: Lab) -> None:
    half = replacing(KERNEL, ("BUG one\n", "upstream one\n"))
    half(lab.source)
    before = PRISTINE | {KERNEL: (lab.source / KERNEL).read_text()}
    lab.fix("bug", before=before, change=replacing(KERNEL, ("BUG two\n", "cured two\n")))
    assert lab.kinds() == {"bug": VerdictKind.PARTLY}
    assert lab.apply().applied[0].verdict is VerdictKind.PARTLY


def test_one_changed_context_line_is_drift_never_fuzz(lab: Lab) -> None:
    lab.fix("bug")
    replacing(KERNEL, ("line 18\n", "line eighteen\n"))(lab.source)
    assert lab.kinds() == {"bug": VerdictKind.DRIFT}
    with pytest.raises(FixError) as caught:
        lab.apply()
    assert f"{KERNEL}:" in caught.value.why
    assert "@@ -" in caught.value.why
    assert "--without bug" in caught.value.do
    assert not lab.out.exists()


def test_a_broken_patch_is_drift_that_says_so(lab: Lab) -> None:
    path = lab.fix("bug") / f"{BASE}.patch"
    path.write_bytes(path.read_bytes().replace(b" line 9\n", b""))
    assert lab.kinds() == {"bug": VerdictKind.DRIFT}
    with pytest.raises(FixError) as caught:
        lab.apply()
    assert "corrupt patch" in caught.value.why


def test_moved_lines_are_no_drift(lab: Lab) -> None:
    lab.fix("bug")
    replacing(KERNEL, ("line 1\n", "line 0\nline 0\nline 1\n"))(lab.source)
    assert lab.kinds() == {"bug": VerdictKind.APPLIES}
    lab.apply()


def test_a_defect_with_no_patch_is_drift_in_status_and_an_error_in_a_build(lab: Lab) -> None:
    lab.fix("bug", change=None)
    assert lab.kinds() == {"bug": VerdictKind.DRIFT}
    with pytest.raises(FixError, match="bug cannot be applied"):
        lab.apply()
    patched = lab.apply(without=("bug",))
    assert patched.skipped[0].why == "left out by --without"
    assert patched.skipped[0].verdict is VerdictKind.DRIFT


def test_a_fix_whose_required_one_is_gone_is_an_orphan(lab: Lab) -> None:
    lab.fix("bug", requires=("gone",))
    assert lab.kinds() == {"bug": VerdictKind.ORPHAN}
    with pytest.raises(FixError, match="orphan"):
        lab.apply()


def test_fixes_stack_and_merge_three_way_where_an_earlier_one_touched_the_context(lab: Lab) -> None:
    lab.fix("first", change=replacing(KERNEL, ("line 18\n", "first\n")), words={"one": "line 18"})
    lab.fix("bug")
    assert lab.kinds() == {"first": VerdictKind.APPLIES, "bug": VerdictKind.APPLIES}
    patched = lab.apply()
    assert "first\n" in (lab.out / KERNEL).read_text()
    assert "by a three-way merge" in patched.verdicts[1].reason
    log = fixlab.git(lab.out, "log", "--format=%s", "refs/seatrial/base..HEAD").decode().split("\n")
    assert len(log) == 3


def test_a_patch_whose_detector_still_fires_stops_the_run(lab: Lab) -> None:
    lab.fix("bug", change=replacing(KERNEL, ("BUG one\n", "cured one\n")))
    with pytest.raises(FixError, match="still there") as caught:
        lab.apply()
    assert f"{KERNEL}:20" in caught.value.why
    assert list(lab.out.parent.iterdir()) == []


def test_a_later_fix_that_brings_a_defect_back_stops_the_run(lab: Lab) -> None:
    lab.fix("bug")
    cured = PRISTINE | {KERNEL: PRISTINE[KERNEL].replace("BUG", "cured")}
    change = replacing(KERNEL, ("cured one\n", "BUG one\n"), ("line 5\n", "five\n"))
    lab.fix("worse", before=cured, change=change, words={"one": "line 5"})
    with pytest.raises(FixError, match="is back"):
        lab.apply()


def test_fixes_of_other_platforms_stay_out(lab: Lab) -> None:
    lab.fix("bug", platforms=("xpu",))
    patched = lab.apply()
    assert (patched.applied, patched.skipped[0].why) == ((), "meant for xpu")
    fixlab.git(lab.out, "status")
    assert [one.id for one in lab.apply(platform=XPU).applied] == ["bug"]


def test_a_native_fix_is_reported(lab: Lab) -> None:
    lab.fix("bug", kind=Kind.NATIVE)
    assert lab.apply().native == ("bug",)


def test_leaving_out_is_checked_before_anything_is_made(lab: Lab) -> None:
    lab.fix("bug")
    lab.fix("other", path="vllm/other.py", words={"one": "OTHER BUG"}, change=None, requires=("bug",))
    with pytest.raises(UsageError, match="there is no fix"):
        lab.apply(without=("nope",))
    with pytest.raises(UsageError, match="cannot be left out"):
        lab.apply(without=("bug",))
    assert not lab.cache.exists()
    assert not lab.out.parent.exists()


def test_the_same_inputs_again_are_kept_and_give_the_same_commit(lab: Lab) -> None:
    lab.fix("bug")
    first = lab.apply()
    inode = lab.out.stat().st_ino
    assert lab.apply() == first
    assert lab.out.stat().st_ino == inode
    assert "nothing changed" in lab.said.getvalue()
    again = Lab(lab.root / "second")
    again.fix("bug")
    other = again.apply()
    assert (other.commit, other.base_commit, other.series_sha256) == (
        first.commit,
        first.base_commit,
        first.series_sha256,
    )


def test_new_inputs_replace_an_untouched_tree_and_never_a_changed_one(lab: Lab) -> None:
    lab.fix("bug")
    lab.apply()
    assert lab.apply(without=("bug",)).applied == ()
    assert "BUG one" in (lab.out / KERNEL).read_text()
    (lab.out / KERNEL).write_text("mine\n")
    with pytest.raises(UsageError, match="was changed"):
        lab.apply()
    assert (lab.out / KERNEL).read_text() == "mine\n"


def test_a_new_file_of_the_users_is_never_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fix("bug")
    lab.apply()
    (lab.root / "home/git").mkdir(parents=True)
    (lab.root / "home/git/ignore").write_text("*\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(lab.root / "home"))
    (lab.out / "mine.py").write_text("mine\n")
    with pytest.raises(UsageError, match="was changed"):
        lab.apply(without=("bug",))
    assert (lab.out / "mine.py").read_text() == "mine\n"


def test_x_bits_arrive_in_the_tree(lab: Lab) -> None:
    write_tree(lab.source, {"tools/run.sh": "echo\n"})
    (lab.source / "tools/run.sh").chmod(0o755)
    lab.fix("bug")
    lab.apply()
    assert (lab.out / "tools/run.sh").stat().st_mode & 0o100
    assert not (lab.out / KERNEL).stat().st_mode & 0o100


def test_a_folder_with_other_things_is_refused(lab: Lab) -> None:
    lab.fix("bug")
    lab.out.mkdir(parents=True)
    (lab.out / "precious").write_text("x")
    with pytest.raises(UsageError, match="holds other things"):
        lab.apply()
    assert (lab.out / "precious").read_text() == "x"


def test_what_a_killed_import_left_is_cleared(lab: Lab) -> None:
    lab.fix("bug")
    lab.kinds()
    (repository,) = lab.cache.glob("git/*.git")
    stale = repository.with_name(f".{repository.name}.abc")
    repository.rename(stale)
    assert lab.kinds() == {"bug": VerdictKind.APPLIES}
    assert not stale.exists()


def test_a_full_disk_is_said_and_leaves_nothing(lab: Lab) -> None:
    lab.fix("bug")
    write_tree(lab.source, {"big": "".join(str(number * 7919) for number in range(90000))})
    lab.cache.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(lab.cache)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    try:
        with pytest.raises(DiskError):
            lab.apply()
        assert not list(lab.cache.glob("git/*.git"))
        assert not list(lab.cache.glob("git/.*.git.*"))
    finally:
        subprocess.run(["umount", str(lab.cache)], check=True)
    assert not lab.out.exists()


def test_a_damaged_import_is_made_again(lab: Lab) -> None:
    lab.fix("bug")
    lab.kinds()
    (packs,) = lab.cache.glob("git/*/objects/pack")
    (pack,) = packs.glob("*.pack")
    data = pack.read_bytes()
    pack.chmod(0o644)
    pack.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    assert lab.kinds() == {"bug": VerdictKind.APPLIES}
    assert "is damaged" in lab.said.getvalue()
