"""Where things stand in a checkout, and the typed files that are read from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seatrial.model.base import BaseLock
from seatrial.model.errors import LockError, UsageError
from seatrial.model.operators import OperatorList
from seatrial.model.platforms import Platform, PlatformTable
from seatrial.model.values import parse_toml
from seatrial.ports.files import read_committed, sha256_tree
from seatrial.stages.lock_base import load_base

MARKS = ("noxfile.py", "images/platforms.toml", "patches/series.toml")
"""Files by which a checkout of seatrial is known."""


@dataclass(frozen=True, slots=True)
class Project:
    """A checkout of seatrial."""

    root: Path

    @property
    def bases(self) -> Path:
        """Return the folder of base locks."""
        return self.root / "build" / "bases"

    @property
    def patches(self) -> Path:
        """Return the folder of fixes."""
        return self.root / "patches"

    @property
    def images(self) -> Path:
        """Return the folder of Dockerfiles, the platform table and run-time locks."""
        return self.root / "images"

    @property
    def smoke_tests(self) -> Path:
        """Return the folder of smoke tests."""
        return self.root / "smoke_tests"

    def out(self, base: str, platform: str) -> Path:
        """Return the folder that a build writes to."""
        return self.root / "out" / f"{base}-{platform}"

    def platform_table(self) -> PlatformTable:
        """Read the platform table; LockError when it is malformed."""
        path = self.images / "platforms.toml"
        return parse_toml(PlatformTable, read_committed(path, "images/platforms.toml"), "images/platforms.toml")

    def base_versions(self) -> tuple[str, ...]:
        """Return the versions that have a base lock, oldest first."""
        found = [path.stem for path in self.bases.glob("*.toml")]
        return tuple(sorted(found, key=_version_key))

    def base_lock(self, version: str) -> BaseLock:
        """Read a base lock; UsageError when there is none, LockError when it was edited by hand."""
        return load_base(self.bases, version)

    def operator_list(self, base: str, platform: str) -> OperatorList | None:
        """Read what a base's extensions register on a platform; None when it was never written down.

        Raises:
            LockError: it is malformed.
        """
        name = f"images/operators/{base}-{platform}.toml"
        path = self.root / name
        return parse_toml(OperatorList, read_committed(path, name), name) if path.is_file() else None

    def code_digest(self, *folders: Path) -> str:
        """Return one digest over the files of some folders, caches left out; receipts are bound to it."""
        files = [
            path
            for folder in folders
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and not path.name.endswith(".pyc")
        ]
        return sha256_tree(self.root, files)


def find_project(start: Path) -> Project:
    """Return the checkout that `start` lies in, or else the one that this package was installed from.

    Raises:
        UsageError: there is none.
    """
    for folder in (start, *start.parents, Path(__file__).resolve().parents[3]):
        if all((folder / mark).is_file() for mark in MARKS):
            return Project(folder)
    raise UsageError(
        f"{start} is not inside a checkout of seatrial",
        why="images/platforms.toml and patches/series.toml were not found in it or above it",
        do="change into a checkout and run the same again",
    )


def choose_base(platform: Platform, asked: str | None) -> str:
    """Return the base to build: the one asked for, else the platform's default.

    Raises:
        UsageError: the platform is not built for the base that was asked for.
        LockError: the row names no default.
    """
    if asked is None:
        if platform.default_base is None:
            raise LockError(
                f"platform {platform.name} has no default base",
                do="name one with --base, or add default_base to its row",
            )
        return platform.default_base
    if platform.bases and asked not in platform.bases:
        raise UsageError(
            f"platform {platform.name} is not built for base {asked}",
            why=f"its row has: {', '.join(platform.bases)}",
            do="choose one of these, or add the base to its row in images/platforms.toml",
        )
    return asked


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.replace("post", "").split(".") if part.isdigit())
