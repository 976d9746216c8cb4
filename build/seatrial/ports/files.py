"""Files: digests, atomic writes, room on the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seatrial.model.errors import DiskError

CHUNK = 1 << 20
"""Bytes read at a time."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a full disk, a quota and a limit on the size of files look like."""
CLOSED = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR)
"""What a path that may not be written looks like."""


def sha256_file(path: Path) -> str:
    """Return the bare SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_tree(root: Path, paths: Iterable[Path]) -> str:
    """Return one digest over files: their POSIX paths below `root`, their modes' x bit and their bytes."""
    total = hashlib.sha256()
    for path in sorted(paths):
        mark = "x" if os.access(path, os.X_OK) else "-"
        total.update(f"{path.relative_to(root).as_posix()}\0{mark}\0{sha256_file(path)}\n".encode())
    return total.hexdigest()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into DiskError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskError(
                f"no room left while writing {path}", do="free some disk space and run the same again"
            ) from None
        if error.errno in CLOSED:
            raise DiskError(
                f"{path} cannot be written", why=error.strerror or "", do="check its owner and mode"
            ) from None
        raise


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that a reader, or a crash, sees the old bytes or the new ones and nothing between."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """Give a temporary folder on the same file system as `path`, removed at the end."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def need_room(path: Path, size: int, what: str) -> None:
    """Raise DiskError unless `size` bytes are free where `path` will stand."""
    at = path
    while not at.exists():
        at = at.parent
    free = shutil.disk_usage(at).free
    if free < size:
        raise DiskError(
            f"{what} needs {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free",
            why=f"on the file system of {at}",
            do="free some disk space and run the same again",
        )
