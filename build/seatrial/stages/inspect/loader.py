"""glibc's rules for finding a library, applied to a file system that is only looked at.

Source: ld.so(8). For a name without a slash: an object of that soname that the process already holds; RPATH of
the object and of those that loaded it, unless the object has a RUNPATH; LD_LIBRARY_PATH; RUNPATH; `ld.so.cache`;
the default folders. Folders that `ld.so.conf` names count only through the cache, as for the loader itself.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from seatrial.ports.elf import Elf, read_loader_cache
from seatrial.ports.rootfs import Entry, RootFs

DEFAULT_FOLDERS = {
    "X86_64": ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"),
    "AARCH64": ("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"),
}
"""Default folders by ELF machine; Debian's first, then the ones of other distributions."""

IN_CACHE = re.compile(r"/\.cache/(?:uv|pip)/")
"""Copies that installers keep; nothing loads them from there, and *leftovers* says that they are inside."""

OTHER_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


@dataclass(frozen=True, slots=True)
class Missing:
    """A name that the loader does not find."""

    soname: str
    needed_by: str
    loaded_for: str
    """The file whose loading leads there; the same as `needed_by` when it is that file itself."""


@dataclass(slots=True)
class Process:
    """What one process holds after it has loaded a file: names, and what could not be found."""

    names: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    missing: list[Missing] = field(default_factory=list)


class Loader:
    """Find libraries in an image."""

    def __init__(self, root: RootFs, machine: str, environment: dict[str, str]) -> None:
        self.root = root
        self.machine = machine
        self.library_path = tuple(p for p in environment.get("LD_LIBRARY_PATH", "").split(":") if p.startswith("/"))
        self.defaults = DEFAULT_FOLDERS.get(machine, OTHER_FOLDERS)
        cache = root.at("/etc/ld.so.cache")
        data = root.kept.get(cache.path) if cache is not None else None
        self.cache = (read_loader_cache(data) if data is not None else None) or {}
        self._found: dict[tuple[str, str], str | None] = {}

    def objects(self) -> Iterator[tuple[str, Elf]]:
        """Yield every file that this machine's loader could load."""
        for entry in self.root.files():
            elf = entry.elf if not IN_CACHE.search(entry.path) else None
            if elf is not None and elf.dynamic and elf.machine == self.machine and not elf.broken and not entry.first:
                yield entry.path, elf

    def find(self, path: str, name: str) -> str | None:
        """Return the real path of the library that a file would get for a needed name, on its own."""
        key = (path, name)
        if key not in self._found:
            self._found[key] = self._find(path, name)
        return self._found[key]

    def load(self, path: str, already: Iterable[str] = ()) -> Process:
        """Follow a file's needs breadth first, as the loader does, and return what the process then holds."""
        process = Process(set(already))
        queue: list[tuple[str, tuple[str, ...]]] = [(path, ())]
        seen = {path}
        for at, loaders in queue:  # grows while it is walked
            elf = self._elf(at)
            process.files.add(at)
            process.names |= {elf.soname or posixpath.basename(at), posixpath.basename(at)}
            for name in elf.needed:
                if name in process.names:
                    continue
                found = self.find(at, name) or self._by_rpath(at, loaders, name)
                if found is None:
                    process.missing.append(Missing(name, at, path))
                    continue
                process.names |= {name, self._elf(found).soname}
                if found not in seen:
                    seen.add(found)
                    queue.append((found, (*loaders, at)))
        return process

    def searched(self, path: str) -> list[str]:
        """Return the folders that were looked into for a file's needs, for a message."""
        elf = self._elf(path)
        own = self._expand(path, elf.runpath or elf.rpath)
        return [*own, *self.library_path, "ld.so.cache", *self.defaults[:2]]

    def _find(self, path: str, name: str) -> str | None:
        if "/" in name:
            return self._usable(self._expand(path, (name,))[0])
        elf = self._elf(path)
        if not elf.runpath and (found := self._in(self._expand(path, elf.rpath), name)):
            return found
        if found := self._in(self.library_path, name):
            return found
        if found := self._in(self._expand(path, elf.runpath), name):
            return found
        for cached in self.cache.get(name, ()):
            if found := self._usable(cached):
                return found
        return self._in(self.defaults, name)

    def _by_rpath(self, path: str, loaders: tuple[str, ...], name: str) -> str | None:
        if self._elf(path).runpath:
            return None
        for loader in reversed(loaders):
            elf = self._elf(loader)
            if not elf.runpath and (found := self._in(self._expand(loader, elf.rpath), name)):
                return found
        return None

    def _in(self, folders: Iterable[str], name: str) -> str | None:
        return next((found for folder in folders if (found := self._usable(f"{folder}/{name}"))), None)

    def _usable(self, path: str) -> str | None:
        """Return the real path when a loadable file of this machine stands there; the loader skips others."""
        entry = self.root.at(path)
        if entry is None or entry.elf is None or entry.elf.machine != self.machine or entry.elf.broken:
            return None
        return entry.first or entry.path

    def _elf(self, path: str) -> Elf:
        entry: Entry = self.root.entries[path]
        assert entry.elf is not None
        return entry.elf

    @staticmethod
    def _expand(path: str, folders: Iterable[str]) -> tuple[str, ...]:
        origin = posixpath.dirname(path)
        return tuple(f.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for f in folders)
