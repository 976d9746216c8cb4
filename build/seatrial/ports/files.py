"""Files: digests, atomic writes, room on the disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seatrial.model.errors import DiskError, LockError

CHUNK = 1 << 20
"""Bytes read at a time."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a full disk, a quota and a limit on the size of files look like."""
CLOSED = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""What a path that may not be written, or cannot be one, looks like."""


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


def read_committed(path: Path, origin: str, *, do: str = "restore it from git") -> str:
    """Return the text of a file of the checkout.

    Args:
        origin: what messages call the file.
        do: what to do where it is missing.

    Raises:
        LockError: it is missing, cannot be read, or is no UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LockError(f"{origin} does not exist", do=do) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{origin} cannot be read", why=str(error), do="restore it from git") from None


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
        sweep_beside(path)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        while not _claim(handle):  # swept in the moment before it was claimed
            os.close(handle)
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
    """Give a temporary folder on the same file system as `path`, removed at the end.

    What processes that were killed left of the same name is removed first.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_beside(path)
        folder, handle = _claimed_folder(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def sweep_beside(path: Path) -> None:
    """Remove the temporary files and folders of `path` whose process is gone; the system tells by their locks."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}")
    for entry in list(path.parent.iterdir()) if path.parent.is_dir() else []:
        if not ours.fullmatch(entry.name) or entry.is_symlink():
            continue
        with suppress(OSError):
            handle = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()
            finally:
                os.close(handle)


def _claimed_folder(path: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # swept in the moment before it was claimed
            continue
        if _claim(handle):
            return folder, handle
        os.close(handle)


def _claim(handle: int) -> bool:
    """Hold a lock for as long as the handle is open, and tell whether what it stands for is still there.

    Where the file system knows no locks nothing is ever swept.
    """
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)
    return os.fstat(handle).st_nlink > 0


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
