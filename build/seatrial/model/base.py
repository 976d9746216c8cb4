"""The base lock: one upstream vLLM release, pinned."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from seatrial.model.errors import LockError, UnsupportedError
from seatrial.model.values import Commit, Frozen, Sha256

Version = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+(\.post\d+)?$")]


class Role(StrEnum):
    """What an upstream artifact is to the build."""

    OFFICIAL_WHEEL = "official-wheel"
    SDIST = "sdist"
    CPU_WHEEL = "cpu-wheel"


class Source(Frozen):
    """Where the release stands in git.

    ``evidence`` says how the commit was learned and what agreed with it.
    """

    git: str
    tag: str
    commit: Commit
    evidence: str


class Artifact(Frozen):
    """One file that an index serves, named by content. No URL: the user's pip configuration finds it."""

    role: Role
    distribution: str
    file: str
    size: int = Field(gt=0)
    sha256: Sha256
    record_sha256: Sha256 | None = None
    """SHA-256 of the wheel's RECORD, so that single members can be read by range and trusted."""
    built_by: str


class Comparison(Frozen):
    """Python files of one artifact against another's, by the hashes in their RECORDs."""

    left: Role
    right: Role
    shared: int
    identical: int
    differing: tuple[str, ...]
    """Paths that both have, with other bytes."""
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]


class BaseLock(Frozen):
    """A pinned upstream release, as `build/bases/<version>.toml` holds it."""

    schema_version: int = Field(default=1, alias="schema")
    version: Version
    source: Source
    artifacts: tuple[Artifact, ...]
    torch: dict[str, str]
    """Platform family to the exact torch release, local version left out."""
    comparisons: tuple[Comparison, ...] = ()
    content_sha256: Sha256
    """Digest over everything above; a hand edit shows."""

    def artifact(self, role: Role) -> Artifact:
        """Return the artifact of a role.

        Raises:
            UnsupportedError: this base has none.
        """
        for artifact in self.artifacts:
            if artifact.role is role:
                return artifact
        raise UnsupportedError(f"base {self.version} has no {role.value}", do="choose another base or platform")

    def torch_for(self, family: str) -> str:
        """Return the torch release for a platform family, or raise LockError."""
        if family not in self.torch:
            raise LockError(
                f"base {self.version} pins no torch for {family}", do=f"run: nox -s lock-base -- {self.version}"
            )
        return self.torch[family]
