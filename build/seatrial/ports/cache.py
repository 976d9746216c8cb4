"""The content-addressed cache of fetched files."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

from seatrial.model.errors import IntegrityError
from seatrial.ports.files import disk_errors, sha256_file

Say = Callable[[str], None]


def default_root() -> Path:
    """Return the user's cache folder for seatrial (XDG_CACHE_HOME is obeyed)."""
    return platformdirs.user_cache_path("seatrial")


class Cache:
    """Keep files by SHA-256: `<root>/sha256/<2>/<64>/<file name>`; the leaf keeps the name that wheel tools need.

    Safe for several processes and threads: whoever writes holds :meth:`locked` for that digest, and a file appears
    under its digest by rename, whole.
    """

    def __init__(self, root: Path, say: Say | None = None) -> None:
        self.root = root
        self._say: Say = say or (lambda text: None)

    def path_of(self, sha256: str) -> Path:
        """Return the folder that holds, or will hold, the file of a digest."""
        return self.root / "sha256" / sha256[:2] / sha256

    def partial(self, sha256: str) -> Path:
        """Return where the bytes that have come so far are kept."""
        return self.root / "partial" / sha256

    def get(self, sha256: str, size: int | None = None) -> Path | None:
        """Return the file of a digest after checking its bytes; None when it is not there.

        A file with other bytes is removed, and that is said.

        Raises:
            IntegrityError: the bytes are right and `size` is not, so that whoever states it is wrong.
        """
        folder = self.path_of(sha256)
        try:
            files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return None
        for path in files:
            if sha256_file(path) != sha256:
                self._say(f"{path.name} in the cache does not hold its bytes any more: thrown away")
                path.unlink(missing_ok=True)
            elif size is not None and path.stat().st_size != size:
                raise IntegrityError(
                    f"{path.name} has {path.stat().st_size} bytes and its lock says {size}",
                    why=f"its sha256 is the locked one: {sha256}",
                    do="write the lock again with its command",
                )
            else:
                return path
        return None

    def admit(self, part: Path, sha256: str, filename: str) -> Path:
        """Move a complete, already checked file under its digest and return its path."""
        target = self.path_of(sha256) / filename
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("rb") as stream:
                os.fsync(stream.fileno())
            part.chmod(0o644)
            part.replace(target)
        return target

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Hold the lock of a digest; says so when another process has it and waits."""
        path = self.root / "locks" / key
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._say(f"waiting for another fetch of {key[:12]}")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
