"""A container image as its flattened file system, read once from a tar stream."""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from seatrial.model.errors import EngineError
from seatrial.ports.elf import MAGIC, Elf, read_elf
from seatrial.ports.files import disk_errors
from seatrial.ports.tarstream import BUFFER, ChunkReader, forget_members

CHUNK = 1 << 20
"""Bytes read at a time."""

SMALL = 32 << 20
"""ELF files up to this size are held in memory while they are read; larger ones pass through a temporary file."""

MAX_LINKS = 40
"""Symbolic links followed before a path counts as a loop, as the kernel does."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of the file system. `size` is in bytes and counts a hard-linked file once, at its first name."""

    path: str
    kind: str
    """`file`, `dir`, `link` (symbolic) or `other` (device, pipe)."""
    mode: int
    """Permission bits with set-id and sticky bits."""
    uid: int = 0
    gid: int = 0
    size: int = 0
    target: str = ""
    """What a symbolic link holds."""
    first: str = ""
    """First name of a hard-linked file, when this is another one."""
    sha256: str = ""
    """Bare digest; only of files that were asked for."""
    elf: Elf | None = None
    shebang: str = ""
    """A script's interpreter line without `#!`."""


@dataclass(frozen=True, slots=True)
class Wants:
    """Which files are worth more than a look at their first bytes."""

    keep: Callable[[str, int], bool]
    """Hold the bytes in memory? Asked with absolute path and size."""
    digest: Callable[[str], bool]
    """Take the SHA-256? Asked with the absolute path."""


@dataclass(slots=True)
class RootFs:
    """All paths of an image, absolute, with the bytes of the few files that were kept."""

    entries: dict[str, Entry] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)
    _resolved: dict[str, str | None] = field(default_factory=dict)

    def resolve(self, path: str) -> str | None:
        """Return where a path leads when every symbolic link is followed inside the image, None if nowhere."""
        if path not in self._resolved:
            self._resolved[path] = self._walk(path)
        return self._resolved[path]

    def at(self, path: str) -> Entry | None:
        """Return the entry that a path leads to."""
        real = self.resolve(path)
        return self.entries.get(real) if real is not None else None

    def text(self, path: str) -> str | None:
        """Return a kept file as text, None if it is missing or was not kept."""
        real = self.resolve(path)
        if real is None:
            return None
        data = self.kept.get(self.entries[real].first or real)
        return data.decode(errors="replace") if data is not None else None

    def files(self) -> Iterator[Entry]:
        """Yield every regular file."""
        return (entry for entry in self.entries.values() if entry.kind == "file")

    def _walk(self, path: str) -> str | None:
        left = [part for part in posixpath.normpath("/" + path).split("/") if part][::-1]
        here, links = "/", 0
        while left:
            part = left.pop()
            if part == "..":
                here = posixpath.dirname(here)
                continue
            step = posixpath.join(here, part)
            entry = self.entries.get(step)
            if entry is None:
                return None
            if entry.kind != "link":
                here = step
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            here = "/" if entry.target.startswith("/") else here
            left.extend([piece for piece in entry.target.split("/") if piece not in ("", ".")][::-1])
        return here


def read_rootfs(chunks: Iterable[bytes], wants: Wants) -> RootFs:
    """Read a file system from the bytes of a tar stream, once, from front to back.

    Raises:
        EngineError: the stream is not a tar file or ends in its middle.
        DiskError: there is no room for a large native file in the temporary folder.
    """
    root = RootFs()
    stream = ChunkReader(chunks)
    why = ""
    try:
        with (
            disk_errors(Path(tempfile.gettempdir())),
            tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", bufsize=BUFFER) as tar,
        ):
            for member in tar:
                _take(root, tar, member, wants)
                forget_members(tar)
    except (tarfile.TarError, EOFError) as error:
        why = str(error)
    if why or not stream.ended_well():
        raise EngineError(
            "the image's file system could not be read to its end",
            why=why or "the stream stops without the end mark of a tar file",
            do="see whether the engine still answers, and run the same again",
        )
    _add_parents(root)
    return root


def _take(root: RootFs, tar: tarfile.TarFile, member: tarfile.TarInfo, wants: Wants) -> None:
    path = posixpath.normpath("/" + member.name.lstrip("/"))
    mode, uid, gid = member.mode & 0o7777, member.uid, member.gid
    if member.isdir():
        root.entries[path] = Entry(path, "dir", mode, uid, gid)
    elif member.issym():
        root.entries[path] = Entry(path, "link", 0o777, uid, gid, target=member.linkname)
    elif member.islnk():
        first = posixpath.normpath("/" + member.linkname.lstrip("/"))
        seen = root.entries.get(first)
        if seen is not None:
            root.entries[path] = Entry(
                path, "file", seen.mode, seen.uid, seen.gid, 0, "", first, seen.sha256, seen.elf, seen.shebang
            )
    elif member.isreg():
        stream = tar.extractfile(member)
        assert stream is not None
        root.entries[path] = _read_file(root, path, member, stream, wants)
    else:
        root.entries[path] = Entry(path, "other", mode, uid, gid)


def _read_file(root: RootFs, path: str, member: tarfile.TarInfo, stream: IO[bytes], wants: Wants) -> Entry:
    size = member.size
    head = stream.read(min(size, 256))
    keep, native = wants.keep(path, size), head.startswith(MAGIC)
    digest = hashlib.sha256(head) if wants.digest(path) else None
    elf: Elf | None = None
    if keep or native or digest is not None:
        held = tempfile.SpooledTemporaryFile(SMALL) if native else None  # noqa: SIM115 - entered below
        parts = [head]
        if held is not None:
            held.write(head)
        while block := stream.read(CHUNK):
            if digest is not None:
                digest.update(block)
            if held is not None:
                held.write(block)
            if keep:
                parts.append(block)
        if keep:
            root.kept[path] = b"".join(parts)
        if held is not None:
            with held:
                elf = read_elf(held, size)
    shebang = head[2:].split(b"\n", 1)[0].decode(errors="replace").strip() if head.startswith(b"#!") else ""
    return Entry(
        path,
        "file",
        member.mode & 0o7777,
        member.uid,
        member.gid,
        size,
        sha256=digest.hexdigest() if digest is not None else "",
        elf=elf,
        shebang=shebang,
    )


def _add_parents(root: RootFs) -> None:
    """Add folders that the stream only implies."""
    root.entries.setdefault("/", Entry("/", "dir", 0o755))
    for path in list(root.entries):
        parent = posixpath.dirname(path)
        while parent not in root.entries:
            root.entries[parent] = Entry(parent, "dir", 0o755)
            parent = posixpath.dirname(parent)
