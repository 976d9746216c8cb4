"""Loading `patches/`: every mistake is one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.model.errors import FixError, LockError, SeatrialError
from seatrial.model.fixes import Kind
from seatrial.model.patches import dep3_fields, hunk_at, split_mail, take_fix_id, touched_paths, with_fix_id
from seatrial.stages.fix_files import load_series
from tests.fixlab import BASE, KERNEL, fix, write_fix

PATCH = f"""\
From {"0" * 40} Mon Sep 17 00:00:00 2001
From: Ann Author <ann@example.org>
Date: Fri, 2 Jan 2026 03:04:05 +0200
Subject: Cure it

Because it is wrong.

Description: cures it
 in two lines
Origin: vendor
---

diff --git a/{KERNEL} b/{KERNEL}
index {"1" * 40}..{"2" * 40} 100644
--- a/{KERNEL}
+++ b/{KERNEL}
@@ -9,3 +9,3 @@ def f():
 line 9
-BUG one
+cured one
 line 11
"""


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    folder = write_fix(tmp_path / "patches", fix(), words={"one": "BUG one", "two": "BUG two"})
    (folder / f"{BASE}.patch").write_text(PATCH)
    return tmp_path / "patches"


def test_a_good_folder_loads(patches: Path) -> None:
    series = load_series(patches)
    (one,) = series.ordered()
    patch = one.patch(BASE)
    assert patch is not None
    assert (patch.path, patch.files) == (f"bug/{BASE}.patch", (KERNEL,))
    assert one.patch("9.9.9") is None


def test_a_fixs_code_has_a_digest(patches: Path) -> None:
    digests = [load_series(patches).fixes["bug"].code_sha256]
    for name, old in (("bug/defect.py", "WORDS ="), ("bug/fix.toml", "title")):
        edit(name, old, f"# changed\n{old}")(patches)
        digests.append(load_series(patches).fixes["bug"].code_sha256)
    assert len(set(digests)) == 3


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(patches: Path) -> None:
        text = (patches / name).read_text()
        assert old in text
        (patches / name).write_text(text.replace(old, new))

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda patches: (patches / name).unlink()


def second(patches: Path, **more: object) -> None:
    write_fix(patches, fix("second", **more), words={"one": "x"})


def before_required(patches: Path) -> None:
    second(patches)
    edit("bug/fix.toml", "requires = []", 'requires = ["second"]')(patches)


def not_listed(patches: Path) -> None:
    second(patches)
    edit("series.toml", '  "second",\n', "")(patches)


P = f"bug/{BASE}.patch"


def gone_behind_a_link(patches: Path) -> None:
    (patches / P).unlink()
    (patches / P).symlink_to("nowhere")


SUBJECT_PATH = "vllm/../../etc/passwd"


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (remove("series.toml"), LockError, "series.toml does not exist"),
        (edit("series.toml", "]", ""), LockError, "not valid TOML"),
        (edit("series.toml", '  "bug",', '  "bug",\n  "bug",'), LockError, "names a fix twice"),
        (edit("series.toml", '"bug"', '"gone"'), LockError, "patches/bug is not in patches/series.toml"),
        (not_listed, LockError, "patches/second is not in"),
        (before_required, LockError, "bug stands before second"),
        (remove("bug/fix.toml"), LockError, "fix.toml does not exist"),
        (remove("bug/test_it.py"), LockError, "patches/bug holds no test_it.py, its proof"),
        (edit("bug/fix.toml", '"test_it.py"', '"../bug/test_it.py"'), LockError, "its proof"),
        (edit("bug/defect.py", "WORDS =", "raise SystemExit(0)\nWORDS ="), LockError, "cannot be imported"),
        (gone_behind_a_link, LockError, "cannot be read"),
        (edit("bug/fix.toml", 'id = "bug"', 'id = "bog"'), LockError, "its id is bog"),
        (edit("bug/fix.toml", "title", "titel"), LockError, "title: Field required"),
        (edit("bug/fix.toml", '"python"', '"snake"'), LockError, "kind:"),
        (edit("bug/fix.toml", f'bases = ["{BASE}"]', "bases = []"), LockError, "does not list"),
        (edit("bug/fix.toml", "shows = []", 'shows = [{part = "x", cases = ["a/b"]}]'), LockError, "shows a part 'x'"),
        (edit("bug/fix.toml", "shows = []", 'shows = [{part = "one", cases = []}]'), LockError, "shows.0.cases"),
        (remove("bug/defect.py"), LockError, "defect.py is missing"),
        (edit("bug/defect.py", "def subject", "def object_"), LockError, r"has no subject\(tree\)"),
        (edit("bug/defect.py", "WORDS =", "WORDS +="), LockError, "cannot be imported"),
        (lambda patches: (patches / P).rename(patches / "bug/main.patch"), LockError, "named for no base"),
        (edit(P, "From 0", "0"), LockError, "not in git-am form"),
        (edit(P, "Subject: ", "Topic: "), LockError, "not in git-am form"),
        (edit(P, "+cured", f"+cured\nFrom {'0' * 40} x\n"), LockError, "more than one commit"),
        (edit(P, "Origin: ", "Source: "), LockError, "has no Origin"),
        (edit(P, "Description: cures it\n in two lines\n", ""), LockError, "has no Description"),
        (edit(P, "diff --git", "index"), LockError, "changes nothing"),
        (edit(P, f"b/{KERNEL}\nindex", "b/vllm/new.py\nindex"), LockError, "renames a file"),
        (edit(P, KERNEL, SUBJECT_PATH), FixError, "outside of the tree"),
        (edit(P, KERNEL, "/etc/passwd"), FixError, "outside of the tree"),
        (edit(P, KERNEL, ".git/config"), FixError, "outside of the tree"),
        (edit(P, KERNEL, "tests/test_it.py"), FixError, "changes tests/test_it.py"),
        (edit(P, "index 1", "new file mode 120000\nindex 1"), FixError, "symbolic link"),
    ],
)
def test_each_mistake_is_one_line(
    patches: Path, change: Callable[[Path], None], error: type[SeatrialError], said: str
) -> None:
    load_series(patches)
    change(patches)
    with pytest.raises(error, match=said) as caught:
        load_series(patches)
    assert caught.value.do
    assert "\n" not in caught.value.what


def test_a_native_fix_may_change_any_source(patches: Path) -> None:
    edit(P, KERNEL, "csrc/ops.h")(patches)
    edit("bug/fix.toml", '"python"', '"native"')(patches)
    (one,) = load_series(patches).ordered()
    assert one.fix.kind is Kind.NATIVE
    assert one.patches[BASE].files == ("csrc/ops.h",)


def test_a_patch_is_read_in_parts() -> None:
    data = PATCH.encode()
    assert b"".join(split_mail(data)) == data
    assert dep3_fields(data) == {"Description": "cures it in two lines", "Origin": "vendor"}
    assert touched_paths(data, "x") == (KERNEL,)
    assert hunk_at(data, KERNEL, 9) == "@@ -9,3 +9,3 @@ def f():"
    assert hunk_at(data, KERNEL, 8) == ""
    assert hunk_at(data, "vllm/other.py", 9) == ""


def test_the_trailer_goes_in_before_the_diff_and_out_again() -> None:
    data = PATCH.encode()
    marked = with_fix_id(data, "bug")
    assert split_mail(marked)[1].endswith(b"Origin: vendor\n\nSeatrial-Fix: bug\n")
    assert split_mail(marked)[2] == split_mail(data)[2]
    assert take_fix_id("Cure\n\nOrigin: x\n\nSeatrial-Fix: bug\n\n") == ("bug", "Cure\n\nOrigin: x\n")
    assert take_fix_id("Cure\n\nOrigin: x\n") == ("", "Cure\n\nOrigin: x\n")
