"""Tar files that are read once, from front to back, from a stream of byte blocks."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from typing import Any, cast

CHUNK = 1 << 20
"""Bytes read at a time."""

BUFFER = 32 << 10
"""Bytes that tarfile asks for at once; it copies the rest of this buffer at every header, so it must not be large."""

END = 1024
"""Zero bytes that close a tar file."""


def forget_members(tar: tarfile.TarFile) -> None:
    """Drop what tarfile remembers of the members so far: an image has tens of thousands, and nothing goes back."""
    cast(Any, tar).members.clear()


class ChunkReader:
    """Give an iterable of byte blocks the `read` that tarfile's stream mode asks for."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._block = memoryview(b"")
        self._tail = b""

    def read(self, size: int) -> bytes:
        """Return as many bytes as are asked for, fewer only at the end."""
        parts: list[bytes | memoryview] = []
        while size > 0:
            if not self._block:
                block = next(self._chunks, None)
                if block is None:
                    break
                self._block = memoryview(block)
                self._tail = (self._tail + block[-END:])[-END:]
                continue
            part = self._block[:size]
            self._block = self._block[len(part) :]
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def ended_well(self) -> bool:
        """Read what is left, and tell whether it ends as a tar file does: tarfile takes a cut between two members."""
        while self.read(CHUNK):
            pass
        return self._tail == bytes(END)
