"""The Python trees of upstream's releases, read from their official wheels by ranges."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Wanted, open_index
from seatrial.ports.remote_zip import RemoteWheel, open_remote


class WheelTree:
    """The Python tree of an official wheel, read by ranges."""

    def __init__(self, wheel: RemoteWheel, origin: str) -> None:
        self.origin = origin
        self._wheel = wheel
        self._paths = [name for name in wheel.names if re.match(r"vllm/.*\.py$", name)]
        wheel.prefetch(self._paths)

    def paths(self) -> Iterable[str]:
        """Return every module."""
        return sorted(self._paths)

    def has(self, path: str) -> bool:
        """Tell whether a module is there."""
        return path in self._paths

    def read(self, path: str) -> bytes:
        """Return a module."""
        return self._wheel.read(path)


def release(version: str, cache: Path) -> WheelTree:
    """Return the tree of a release; what is fetched is kept in a cache folder."""
    index = open_index()
    wheel = next(found for found in index.find("vllm", version) if "x86_64" in found.filename)
    remote = open_remote(index, Wanted.of(wheel), cache=Cache(cache), console=Console(out=io.StringIO()))
    return WheelTree(remote, wheel.filename)
