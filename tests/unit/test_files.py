"""Atomic writes, digests, room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from seatrial.model.errors import DiskError
from seatrial.ports.files import (
    disk_errors,
    need_room,
    scratch_beside,
    sha256_file,
    sha256_tree,
    sweep_beside,
    write_atomic,
)


def test_a_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_write_that_breaks_keeps_the_old_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="no room"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_the_systems_refusals_become_disk_errors(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskError), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="bad"), disk_errors(tmp_path):
        raise OSError(errno.EIO, "bad")


def test_scratch_is_gone_afterwards_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch_beside(tmp_path / "x") as folder:
        (folder / "half").write_text("made")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_tree_digest_sees_names_modes_and_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("2")
    digests = {sha256_tree(tmp_path, [two, one])}
    assert digests == {sha256_tree(tmp_path, [one, two])}
    two.write_text("3")
    digests.add(sha256_tree(tmp_path, [one, two]))
    two.chmod(0o755)
    digests.add(sha256_tree(tmp_path, [one, two]))
    two.rename(tmp_path / "three")
    digests.add(sha256_tree(tmp_path, [one, tmp_path / "three"]))
    assert len(digests) == 4
    assert sha256_file(one) == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    need_room(tmp_path / "a" / "b", 1, "it")
    with pytest.raises(DiskError, match="needs"):
        need_room(tmp_path / "a" / "b", 1 << 60, "it")


def test_sweeping_where_nothing_is_yet_does_nothing(tmp_path: Path) -> None:
    sweep_beside(tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == []
