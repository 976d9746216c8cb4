"""Fetch every wheel that a requirement lock names, and lay them out for the image's build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.model.errors import FetchError, LockError
from seatrial.model.requirements import LockedWheel, LockRules, lock_text, parse_lock
from seatrial.model.values import parse_toml
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.files import read_committed, write_atomic
from seatrial.ports.index import Found, Index, Wanted
from seatrial.ports.links import link
from seatrial.ports.pip_config import PipConfig
from seatrial.ports.uv import find_cpu_torch


@dataclass(frozen=True, slots=True)
class Sources:
    """Where locks and wheels come from."""

    locks: Path
    """The folder `images/locks`."""
    index: Index
    config: PipConfig
    cache: Cache


@dataclass(frozen=True, slots=True)
class Requirements:
    """Everything that goes into an image beside vLLM itself, by content.

    `torch` holds torch and what only its build brings along; `rest` holds all else.
    """

    torch: tuple[LockedWheel, ...]
    rest: tuple[LockedWheel, ...]
    torch_origin: str
    """Which build of torch it is and where it comes from, for the record."""
    found: tuple[Found, ...] = ()
    """Files whose place is known already because no configured source offers them."""

    @property
    def wheels(self) -> tuple[LockedWheel, ...]:
        """Return all of them."""
        return (*self.torch, *self.rest)

    @property
    def versions(self) -> dict[str, str]:
        """Return normalised names to versions."""
        return {wheel.name: wheel.version for wheel in self.wheels}

    @property
    def text(self) -> str:
        """Return the canonical text that digests are taken over: no header, sorted by name."""
        return lock_text(self.wheels, ())


def read_requirement_lock(path: Path) -> tuple[LockedWheel, ...]:
    """Read a lock of `images/locks/`; LockError when it is missing or not as it was written."""
    name = f"images/locks/{path.name}"
    return parse_lock(read_committed(path, name, do="write it: nox -s lock-requirements -- PLATFORM --base V"), name)


def choose_requirements(base: str, platform: str, torch: str, *, sources: Sources, console: Console) -> Requirements:
    """Read the locks and choose the build of torch: PyTorch's for CPUs where it can be had, else the index's.

    A second choice is announced and stands in the console's list of fallbacks.

    Args:
        torch: exact torch release without a local part.

    Raises:
        LockError: a lock is missing, malformed, or pins another torch than the base does.
    """
    locks = sources.locks
    rest = read_requirement_lock(locks / f"{base}-{platform}.txt")
    chosen = _cpu_torch(base, platform, torch, sources, console)
    if chosen is None:
        wheels = read_requirement_lock(locks / f"{base}-{platform}.torch-index.txt")
        _same_torch(wheels, torch, base)
        size = sum(wheel.size for wheel in wheels) / 1e9
        console.fallback(
            f"torch {torch} is the configured index's build ({size:.1f} GB with its CUDA libraries): "
            "no source here has PyTorch's CPU build"
        )
        return Requirements(wheels, rest, f"{torch}, built for CUDA, from the configured index")
    wheel, origin, found = chosen
    _same_torch((wheel,), torch, base)
    console.line(f"  torch {wheel.version}: {origin}")
    return Requirements((wheel,), rest, f"{wheel.version}, {origin}", found)


def _cpu_torch(
    base: str, platform: str, torch: str, sources: Sources, console: Console
) -> tuple[LockedWheel, str, tuple[Found, ...]] | None:
    """Return PyTorch's CPU build, in words where from, and its place where no configured source has it."""
    path = sources.locks / f"{base}-{platform}.torch-cpu.txt"
    locked = read_requirement_lock(path)[0] if path.is_file() else None
    origin = "PyTorch's CPU build, as locked"
    if locked is not None:
        if any(sources.cache.path_of(locked.sha256).glob("*.whl")):
            return locked, origin, ()
        try:
            sources.index.find_by_hashes("torch", locked.version, {locked.sha256})
        except FetchError:
            pass
        else:
            return locked, origin, ()
    rules_path = sources.locks / f"{platform}.toml"
    rules_name = f"images/locks/{platform}.toml"
    rules = parse_toml(LockRules, read_committed(rules_path, rules_name), rules_name)
    seen = find_cpu_torch(torch, rules, sources.config)
    if seen is None:
        return None
    entry, where = seen
    wheel = entry.wheel
    if locked is not None and wheel.sha256 != locked.sha256:
        console.fallback(f"{where} has other bytes for torch {wheel.version} than images/locks/{path.name}: not taken")
        return None
    if locked is None:
        console.fallback(f"the hash of torch {wheel.version} was learned from {where}: images/locks/ has none")
    found = Found("torch", wheel.version, wheel.file, entry.place, wheel.sha256, wheel.size)
    return wheel, f"PyTorch's CPU build, from {where}", (found,) if "://" in entry.place else ()


def _same_torch(wheels: Sequence[LockedWheel], torch: str, base: str) -> None:
    """Refuse a lock whose torch is not the base's: vLLM's extensions load with exactly one release."""
    have = next((wheel.version for wheel in wheels if wheel.name == "torch"), "none")
    if have.partition("+")[0] != torch:
        raise LockError(
            f"the requirement lock of {base} pins torch {have}, and the base's extensions were built on {torch}",
            do="write it again: nox -s lock-requirements",
        )


def fetch_requirements(requirements: Requirements, *, index: Index, cache: Cache, console: Console) -> list[Path]:
    """Have every wheel in the cache, each checked against its hash; resumed after a break.

    Raises:
        FetchError: one is not offered or did not arrive.
        IntegrityError: other bytes arrived.
        DiskError: no room.
    """
    places = {found.sha256: found for found in requirements.found}
    wanted = [
        Wanted(wheel.name, wheel.file, wheel.sha256, wheel.size, places.get(wheel.sha256))
        for wheel in requirements.wheels
    ]
    return index.fetch_many(wanted, cache=cache, console=console, label="run-time wheels")


def lay_wheelhouse(requirements: Requirements, paths: Sequence[Path], folder: Path) -> None:
    """Lay fetched wheels out as `torch/` and `rest/`, each with a requirements.txt; hard links, no copies.

    Args:
        paths: the wheels in the cache, in the order of `requirements.wheels`.
        folder: an empty folder, on the cache's file system for links to be possible.
    """
    by_digest = {wheel.sha256: path for wheel, path in zip(requirements.wheels, paths, strict=True)}
    for name, wheels in (("torch", requirements.torch), ("rest", requirements.rest)):
        place = folder / name
        place.mkdir(parents=True)
        write_atomic(place / "requirements.txt", lock_text(wheels, ()).encode())
        for wheel in wheels:
            link(by_digest[wheel.sha256], place / wheel.file)
