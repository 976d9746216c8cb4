"""Read a vLLM source tree from a folder, a wheel or a source archive, without unpacking it."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

from seatrial.model.errors import IntegrityError, UsageError
from seatrial.model.patches import is_inside
from seatrial.model.tree import Tree
from seatrial.ports.files import sha256_file

SKIPPED_FOLDERS = frozenset({".git", "__pycache__", ".venv", "node_modules"})
"""Folder names that a work tree may hold and that are no part of vLLM's source."""

_NOT_SOURCE = re.compile(r"^[^/]+\.(?:dist-info|data)/")
"""What a wheel holds beside the tree."""


class SourceTree(Tree, Protocol):
    """A tree whose files have modes, and whose content has a digest."""

    def executable(self, path: str) -> bool:
        """Tell whether a file has its x bit."""
        ...

    def digest(self) -> str:
        """Return a bare SHA-256 that changes when the tree does: of the archive, or over a folder's files."""
        ...


def open_tree(path: Path) -> SourceTree:
    """Open a vLLM tree: a folder, a wheel (or another zip), or a tar archive; chosen by content, not by name.

    Raises:
        UsageError: there is nothing at `path`, or nothing that holds a vLLM tree.
        IntegrityError: the archive is damaged, or a member would leave the tree.
    """
    if path.is_dir():
        tree: SourceTree = FolderTree(path)
    elif path.is_file():
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic[:2] == b"PK":
            tree = ZipTree(path)
        elif magic[:2] == b"\x1f\x8b" or _is_plain_tar(path):
            tree = TarTree(path)
        else:
            raise UsageError(f"{path} is no folder, wheel or source archive", do="name one of these")
    else:
        raise UsageError(f"{path} does not exist", do="name a vLLM source folder, sdist or wheel")
    if not tree.has("vllm/__init__.py"):
        raise UsageError(f"{path} holds no vLLM", why="it has no vllm/__init__.py", do="name the folder above vllm/")
    return tree


class Source:
    """A tree that is opened only when it is needed: its digest alone often says enough."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def tree(self) -> SourceTree:
        """Return the tree; raises what :func:`open_tree` raises."""
        return open_tree(self.path)

    @cached_property
    def digest(self) -> str:
        """Return the tree's digest; of an archive without opening it."""
        return sha256_file(self.path) if self.path.is_file() else self.tree.digest()


def _is_plain_tar(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(257)
        return stream.read(5) == b"ustar"


class FolderTree:
    """A folder as it stands; links are not followed and not listed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: list[str] | None = None

    @property
    def origin(self) -> str:
        """Return the folder's path."""
        return str(self._root)

    def paths(self) -> Iterable[str]:
        """Return every file's path, sorted; read from the disk once."""
        if self._paths is None:
            found: list[str] = []
            for folder, names, files in os.walk(self._root):
                names[:] = [name for name in names if name not in SKIPPED_FOLDERS]
                below = Path(folder).relative_to(self._root).as_posix()
                prefix = "" if below == "." else f"{below}/"
                found += [prefix + name for name in files if not (Path(folder) / name).is_symlink()]
            self._paths = sorted(path for path in found if is_inside(path))
        return self._paths

    def has(self, path: str) -> bool:
        """Tell whether the folder holds a file."""
        return is_inside(path) and (self._root / path).is_file()

    def read(self, path: str) -> bytes:
        """Return a file's bytes; KeyError if there is no such file."""
        if not self.has(path):
            raise KeyError(path)
        return (self._root / path).read_bytes()

    def executable(self, path: str) -> bool:
        """Tell whether the owner may run a file."""
        return bool((self._root / path).stat().st_mode & stat.S_IXUSR)

    def digest(self) -> str:
        """Return one digest over paths, x bits and bytes."""
        total = hashlib.sha256()
        for path in self.paths():
            mark = "x" if self.executable(path) else "-"
            total.update(f"{path}\0{mark}\0{sha256_file(self._root / path)}\n".encode())
        return total.hexdigest()


class _Archive:
    """What archives share: their members by path."""

    _path: Path
    _members: Mapping[str, object]

    @property
    def origin(self) -> str:
        """Return the archive's path."""
        return str(self._path)

    def paths(self) -> Iterable[str]:
        """Return every file's path, sorted."""
        return sorted(self._members)

    def has(self, path: str) -> bool:
        """Tell whether the archive holds a file."""
        return path in self._members

    def digest(self) -> str:
        """Return the archive's SHA-256."""
        return sha256_file(self._path)


class ZipTree(_Archive):
    """A wheel: its own layout (`vllm/...`), its metadata left out. Members are read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise _damaged(path, error) from None
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            name = _member(path, info.filename.rstrip("/") if info.is_dir() else info.filename)
            if stat.S_ISLNK(info.external_attr >> 16):
                raise _refused(path, name, "is a link")
            if info.is_dir() or _NOT_SOURCE.match(name):
                continue
            if name in self._members:
                raise _refused(path, name, "is there twice")
            self._members[name] = info

    def read(self, path: str) -> bytes:
        """Return a file's bytes, checked against its CRC; KeyError if there is no such file."""
        try:
            return self._zip.read(self._members[path])
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise _damaged(self._path, error) from None

    def executable(self, path: str) -> bool:
        """Tell whether the member has its x bit."""
        return bool((self._members[path].external_attr >> 16) & stat.S_IXUSR)


class TarTree(_Archive):
    """A source archive, its top folder stripped. It is read once, from end to end, and kept in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, tuple[bytes, bool]] = {}
        try:
            self._load(_plain_bytes(path))
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise _damaged(path, error) from None

    def _load(self, data: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            end = 0
            top = ""
            for info in archive:
                name = _member(self._path, info.name)
                end = info.offset_data + (info.size if info.isfile() else 0)
                if info.issym() or info.islnk():
                    raise _refused(self._path, name, "is a link")
                if not info.isfile():
                    if info.isdir():
                        continue
                    raise _refused(self._path, name, "is a device")
                folder, _, below = name.partition("/")
                if not below or folder != (top or folder):
                    raise _refused(self._path, name, "is not below the one top folder")
                top = folder
                _member(self._path, below)
                if below in self._members:
                    raise _refused(self._path, name, "is there twice")
                self._members[below] = (data[info.offset_data : end], bool(info.mode & stat.S_IXUSR))
        # tarfile takes a broken header for the end of the archive
        if data[end:].strip(b"\0") or len(data) - end < 2 * tarfile.BLOCKSIZE:
            raise EOFError("it does not end with the end mark")

    def read(self, path: str) -> bytes:
        """Return a file's bytes; KeyError if there is no such file."""
        return self._members[path][0]

    def executable(self, path: str) -> bool:
        """Tell whether the member has its x bit."""
        return self._members[path][1]


def _plain_bytes(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def _member(archive: Path, name: str) -> str:
    if not is_inside(name):
        raise _refused(archive, name, "would leave the tree")
    return name


def _refused(archive: Path, name: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{archive} is not to be trusted", why=f"member {name!r} {why}", do="fetch it again from its source"
    )


def _damaged(archive: Path, error: Exception) -> IntegrityError:
    return IntegrityError(f"{archive} is damaged", why=str(error) or type(error).__name__, do="fetch it again")
