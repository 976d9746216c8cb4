"""The platform table: one row of `images/platforms.toml` a platform."""

from __future__ import annotations

from pydantic import Field, field_validator

from seatrial.model.base import Role
from seatrial.model.errors import UsageError
from seatrial.model.expectation import Allowance
from seatrial.model.values import Frozen, Identifier


class Setting(Frozen):
    """An environment variable that the image sets, and the reason for it."""

    name: str
    value: str
    why: str


class Platform(Frozen):
    """One row: data only; what a family does differently is in its Dockerfile and its module."""

    name: Identifier
    family: Identifier
    device: str
    """Where smoke has to run for the gate to name the image: cpu, cuda, rocm or xpu."""
    machine: str
    """CPU architecture as `uname -m` prints it."""
    gpu_arches: tuple[str, ...] = ()
    artifact: Role | None = None
    """The upstream wheel that overlay mode starts from; none: only source builds."""
    bases: tuple[str, ...] = ()
    """Bases that this platform is built for."""
    default_base: str | None = None
    profiles: tuple[Identifier, ...] = ()
    """Smoke profiles that the gate wants."""
    over_wheels_mb: int = Field(default=0, ge=0)
    """Size budget: MB (10^6 bytes) that the image may hold beyond the sum of its installed wheels."""
    environment: tuple[Setting, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    """What inspect would object to and is meant to be so on this platform."""
    missing: str = ""
    """What this platform still lacks; not empty: its build session ends with *unsupported here*."""


class PlatformTable(Frozen):
    """All rows."""

    platforms: tuple[Platform, ...]

    @field_validator("platforms")
    @classmethod
    def _each_once(cls, rows: tuple[Platform, ...]) -> tuple[Platform, ...]:
        first: dict[str, int] = {}
        for number, row in enumerate(rows, 1):
            if row.name in first:
                raise ValueError(f"{row.name} stands twice, as rows {first[row.name]} and {number}")
            first[row.name] = number
        return rows

    def row(self, name: str) -> Platform:
        """Return the row of a platform, or raise UsageError naming those that exist."""
        for platform in self.platforms:
            if platform.name == name:
                return platform
        known = ", ".join(platform.name for platform in self.platforms)
        raise UsageError(
            f"there is no platform {name!r}", why=f"images/platforms.toml has: {known}", do="choose one of these"
        )
