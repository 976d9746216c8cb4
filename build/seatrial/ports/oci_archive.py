"""An OCI archive: the uncompressed tar that buildx writes and `docker save` gives back."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seatrial.model.errors import IntegrityError
from seatrial.ports.files import CHUNK

SMALL = 4 << 20
"""Bytes that a manifest or a configuration may have."""


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    size: int


class OciArchive:
    """Read blobs by digest, each checked as it is read.

    Raises:
        IntegrityError: there is no archive, it is cut short, or a blob in it is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, _Place] = {}
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    algorithm, _, name = member.name.removeprefix("blobs/").partition("/")
                    if member.isreg() and member.name.startswith("blobs/") and name:
                        self._places[f"{algorithm}:{name}"] = _Place(member.offset_data, member.size)
        except (OSError, tarfile.TarError) as error:
            raise IntegrityError(
                f"the image archive {path.name} cannot be read", why=str(error), do="delete it and run the same again"
            ) from None

    def size(self, digest: str) -> int:
        """Return a blob's size in bytes."""
        if digest not in self._places:
            raise IntegrityError(f"the image archive {self.path.name} lacks {digest}", do="run the same again")
        return self._places[digest].size

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Give a blob's bytes; the last piece only comes when the whole is right."""
        left = self.size(digest)
        total = hashlib.sha256()
        with self.path.open("rb") as stream:
            stream.seek(self._places[digest].offset)
            while left > 0:
                piece = stream.read(min(CHUNK, left))
                left -= len(piece)
                total.update(piece)
                if not piece or (not left and "sha256:" + total.hexdigest() != digest):
                    raise IntegrityError(
                        f"{digest} in the image archive {self.path.name} is damaged",
                        do="delete the archive and run the same again",
                    )
                yield piece

    def small(self, digest: str) -> bytes:
        """Return a manifest's or configuration's bytes."""
        if self.size(digest) > SMALL:
            raise IntegrityError(f"{digest} in {self.path.name} is too large to be a manifest")
        return b"".join(self.chunks(digest))
