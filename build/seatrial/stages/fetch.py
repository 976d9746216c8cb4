"""Fetch what a base lock names: artifacts, and the source tree that fixes are applied to."""

from __future__ import annotations

import io
import shutil
import zipfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from seatrial.model.base import Artifact, BaseLock, Role
from seatrial.model.errors import IntegrityError, LockError
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.files import sha256_file, write_atomic
from seatrial.ports.index import Index, Wanted
from seatrial.ports.records import checked, python_files, record_hashes
from seatrial.ports.remote_zip import RemoteWheel, open_remote

ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The oldest time that a zip archive can hold."""


@dataclass(frozen=True, slots=True)
class TreeSource:
    """A file with a base's source: an sdist, or a zip with the Python files and the dist-info of a wheel."""

    path: Path
    role: Role
    """The artifact that it was taken from."""
    sha256: str


def wanted(artifact: Artifact) -> Wanted:
    """Return what to ask an index for."""
    return Wanted(artifact.distribution, artifact.file, artifact.sha256, artifact.size)


def fetch_artifact(lock: BaseLock, role: Role, *, cache: Cache, index: Index, console: Console) -> Path:
    """Return an artifact of a base, checked against its lock, in the cache.

    Raises:
        UnsupportedError: the base has no such artifact.
        FetchError, IntegrityError, DiskError: as :meth:`Index.download` does.
    """
    return index.download(wanted(lock.artifact(role)), cache=cache, console=console)


def fetch_tree(
    lock: BaseLock, platform_artifact: Role | None, *, cache: Cache, index: Index, console: Console
) -> TreeSource:
    """Return the source that fixes are applied to: the sdist, or else the official wheel's Python files.

    The wheel's files are read by range, a few MB of it; each is checked against RECORD, and RECORD against the lock.

    Args:
        platform_artifact: the wheel that the build starts from; when it is the official one it is fetched whole, once.

    Raises:
        IntegrityError: the wheel's RECORD is not the locked one, or a member is not what RECORD says.
        LockError: the lock has no digest of the RECORD.
        FetchError, DiskError: as :meth:`Index.download` does.
    """
    if any(artifact.role is Role.SDIST for artifact in lock.artifacts):
        path = fetch_artifact(lock, Role.SDIST, cache=cache, index=index, console=console)
        return TreeSource(path, Role.SDIST, lock.artifact(Role.SDIST).sha256)
    artifact = lock.artifact(Role.OFFICIAL_WHEEL)
    if artifact.record_sha256 is None:
        raise LockError(
            f"the lock of base {lock.version} has no digest of the RECORD of {artifact.file}",
            do=f"run: nox -s lock-base -- {lock.version}",
        )
    key = artifact.record_sha256
    path = cache.root / "trees" / key / f"{artifact.distribution}-{lock.version}-python.zip"
    with cache.locked(f"tree-{key}"):
        if not _kept_tree(path, key, console):
            if platform_artifact is Role.OFFICIAL_WHEEL:
                fetch_artifact(lock, Role.OFFICIAL_WHEEL, cache=cache, index=index, console=console)
            shutil.rmtree(path.parent, ignore_errors=True)  # what a killed run may have left
            wheel = open_remote(index, wanted(artifact), cache=cache, console=console)
            write_atomic(path, _tree_of(wheel, artifact, key))
            console.detail(
                f"{artifact.file}: {len(python_files(wheel.names))} Python files"
                f" with {wheel.traffic / 1e6:.1f} MB of {wheel.size / 1e6:.1f} MB"
            )
    return TreeSource(path, Role.OFFICIAL_WHEEL, sha256_file(path))


def _kept_tree(path: Path, key: str, console: Console) -> bool:
    """Tell whether an earlier run left the tree, with all its bytes; another one is thrown away."""
    if not path.exists():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            record_name = next(name for name in names if name.endswith(".dist-info/RECORD"))
            record = archive.read(record_name)
            hashes = record_hashes(record)
            expected = {*_members(list(hashes), hashes), record_name}
            wrong = sha256(record).hexdigest() != key or set(names) != expected
            for name in expected - {record_name} if not wrong else ():
                checked(name, archive.read(name), hashes)
    except (zipfile.BadZipFile, StopIteration, IntegrityError, OSError, EOFError):
        wrong = True
    if wrong:
        console.detail(f"{path.name} in the cache does not hold its bytes any more: thrown away")
    return not wrong


def _members(names: list[str], hashes: dict[str, str]) -> list[str]:
    """Return which members of a wheel belong to the tree: Python files, and the dist-info that RECORD vouches for."""
    info = [name for name in names if name.split("/")[0].endswith(".dist-info") and name in hashes]
    return sorted([*python_files(names), *info])


def _tree_of(wheel: RemoteWheel, artifact: Artifact, record_sha256: str) -> bytes:
    """Return a zip, the same bytes every time, of a wheel's Python files and dist-info, each checked."""
    record = wheel.record()
    if sha256(record).hexdigest() != record_sha256:
        raise IntegrityError(
            f"the RECORD of {artifact.file} is not the one in its lock",
            why=f"sha256 {sha256(record).hexdigest()}, expected {record_sha256}",
            do="check the index or mirror that pip is configured for",
        )
    hashes = record_hashes(record)
    members = _members(list(wheel.names), hashes)
    wheel.prefetch(members)
    files = {name: checked(name, wheel.read(name), hashes) for name in members}
    missing = sorted(set(_members(list(hashes), hashes)) - set(files))
    if missing:
        raise IntegrityError(
            f"{artifact.file} lacks {len(missing)} files of its RECORD", why=f"the first: {missing[0]}"
        )
    files[f"{wheel.dist_info}/RECORD"] = record
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:  # stored: no bytes that hang on a zlib version
        for name in sorted(files):
            info = zipfile.ZipInfo(name, ZIP_TIME)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, files[name])
    return buffer.getvalue()
