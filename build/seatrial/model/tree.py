"""A read-only vLLM source tree, whatever it is stored in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Tree(Protocol):
    """Give the files of a tree by POSIX path relative to its root (`vllm/...`, `csrc/...`)."""

    @property
    def origin(self) -> str:
        """Return what the tree was read from, for messages."""
        ...

    def paths(self) -> Iterable[str]:
        """Return every file's path, sorted."""
        ...

    def has(self, path: str) -> bool:
        """Tell whether the tree holds a file."""
        ...

    def read(self, path: str) -> bytes:
        """Return a file's bytes; KeyError if there is no such file."""
        ...
