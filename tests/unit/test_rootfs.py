"""A tar stream as a file system: links, modes, digests, and only what was asked for in memory."""

from __future__ import annotations

import errno
import hashlib
import tempfile

import pytest

from seatrial.model.errors import DiskError
from seatrial.ports import rootfs
from seatrial.ports.rootfs import RootFs, Wants, read_rootfs
from tests.imagemaker import Disk, elf_bytes

EVERYTHING = Wants(keep=lambda path, size: True, digest=lambda path: True)
NOTHING = Wants(keep=lambda path, size: False, digest=lambda path: False)


def read(disk: Disk, wants: Wants = EVERYTHING, block: int = 999) -> RootFs:
    data = disk.tar()
    return read_rootfs((data[at : at + block] for at in range(0, len(data), block)), wants)


def test_files_keep_mode_size_bytes_and_digest() -> None:
    disk = Disk()
    disk.add("/a/b", b"#!/bin/sh -e\nx", 0o4755)
    root = read(disk)
    entry = root.entries["/a/b"]
    assert (entry.kind, entry.mode, entry.size, entry.shebang) == ("file", 0o4755, 14, "/bin/sh -e")
    assert entry.sha256 == hashlib.sha256(b"#!/bin/sh -e\nx").hexdigest()
    assert root.text("/a/b") == "#!/bin/sh -e\nx"
    assert root.entries["/a"].kind == "dir"


def test_only_what_was_asked_for_is_held() -> None:
    disk = Disk()
    disk.add("/a", b"text")
    disk.add("/lib.so", elf_bytes(["libc.so.6"]))
    root = read(disk, NOTHING)
    assert root.kept == {}
    assert root.entries["/a"].sha256 == ""
    elf = root.entries["/lib.so"].elf
    assert elf is not None
    assert elf.needed == ("libc.so.6",)


def test_a_native_file_beyond_the_memory_limit_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs, "SMALL", 16)
    disk = Disk()
    disk.add("/lib.so", elf_bytes(["libc.so.6"]))
    elf = read(disk, NOTHING).entries["/lib.so"].elf
    assert elf is not None
    assert elf.needed == ("libc.so.6",)


def test_no_room_for_a_large_native_file_is_a_disk_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    disk = Disk()
    disk.add("/lib.so", elf_bytes(["libc.so.6"]))
    with pytest.raises(DiskError, match="no room left"):
        read(disk, NOTHING)


def test_links_are_followed_inside_the_image() -> None:
    disk = Disk()
    disk.add("/usr/lib/real.so", b"x")
    disk.links = {
        "/lib": "usr/lib",
        "/opt/up": "../lib/real.so",
        "/opt/absolute": "/lib/./real.so",
        "/opt/chain": "absolute",
        "/opt/broken": "/nowhere",
        "/opt/above": "../../../../usr/lib/real.so",
    }
    root = read(disk)
    for path in ("/lib/real.so", "/opt/up", "/opt/absolute", "/opt/chain", "/opt/above", "/usr/../lib/real.so"):
        assert root.resolve(path) == "/usr/lib/real.so", path
    assert root.resolve("/opt/broken") is None
    assert root.at("/missing") is None


def test_a_ring_of_links_leads_nowhere() -> None:
    disk = Disk()
    disk.links = {"/a": "/b", "/b": "/a"}
    assert read(disk).resolve("/a") is None


def test_a_hard_link_has_the_same_content_and_counts_once() -> None:
    disk = Disk()
    disk.add("/a", b"text", 0o755)
    disk.hard = {"/z": "a"}
    root = read(disk)
    entry = root.entries["/z"]
    assert (entry.kind, entry.first, entry.mode, entry.size) == ("file", "/a", 0o755, 0)
    assert entry.sha256 == root.entries["/a"].sha256
    assert root.text("/z") == "text"


@pytest.mark.parametrize("block", [1, 511, 512, 1 << 20])
def test_the_size_of_blocks_does_not_matter(block: int) -> None:
    disk = Disk()
    disk.add("/a", b"text" * 5000)
    assert read(disk, block=block).text("/a") == "text" * 5000
