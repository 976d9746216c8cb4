"""A repair as a patch: real git am takes it on a fresh tree, and the result is what the repair writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.cli.main import main
from seatrial.model.errors import DiskError
from seatrial.model.patches import check_form, touched_paths
from tests.fixlab import git, write_tree

ROOT = Path(__file__).parents[2]
LAYER = "vllm/model_executor/models/qwen3_next.py"
FILES = {
    "vllm/__init__.py": "",
    LAYER: (ROOT / "tests" / "downstream" / "qwen3_next_xpu.py").read_text(),
    "vllm/other.py": "# stays\n",
}


def test_git_am_gives_what_the_repair_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, patch = write_tree(tmp_path / "tree", FILES), tmp_path / "out" / "gdn.patch"
    assert main(["repair", "gdn-dtype", str(tree), "--write-patch", str(patch)]) == 0
    data = patch.read_bytes()
    check_form(data, "the patch")
    assert touched_paths(data, "the patch") == (LAYER,)

    fresh = write_tree(tmp_path / "fresh", FILES)
    git(fresh, "init", "-q")
    git(fresh, "add", "-A")
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    git(fresh, *who, "commit", "-qm", "base")
    git(fresh, *who, "am", "-q", str(patch))
    assert (fresh / LAYER).read_bytes() == (tree / LAYER).read_bytes()
    assert (fresh / LAYER).read_text() != FILES[LAYER]
    assert git(fresh, "log", "-1", "--format=%s").decode().strip().startswith("Let scratch tensors")
    assert git(fresh, "status", "--porcelain") == b""


def test_the_same_tree_gives_the_same_patch_and_a_repaired_one_gives_none(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", FILES)
    one, two, three = (tmp_path / name for name in ("one.patch", "two.patch", "three.patch"))
    assert main(["repair", "gdn-dtype", str(tree), "--dry-run", "--write-patch", str(one)]) == 0
    assert (tree / LAYER).read_text() == FILES[LAYER]
    assert main(["repair", "gdn-dtype", str(tree), "--write-patch", str(two)]) == 0
    assert one.read_bytes() == two.read_bytes()
    assert main(["repair", "gdn-dtype", str(tree), "--write-patch", str(three)]) == 0
    assert not three.exists()


@pytest.mark.parametrize("kept", [None, b"older"])
def test_a_tree_that_cannot_be_written_leaves_no_patch_either(tmp_path: Path, kept: bytes | None) -> None:
    tree, patch = write_tree(tmp_path / "tree", FILES), tmp_path / "gdn.patch"
    if kept:
        patch.write_bytes(kept)
    (tree / LAYER).chmod(0o444)
    assert main(["repair", "gdn-dtype", str(tree), "--write-patch", str(patch)]) == DiskError.code
    assert (patch.read_bytes() if patch.exists() else None) == kept
    assert (tree / LAYER).read_text() == FILES[LAYER]
