"""Run-time requirement locks: the text form, and the rules they are resolved by."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import Field

from seatrial.model.errors import LockError, UsageError
from seatrial.model.values import Frozen

PIN = re.compile(r"^(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[^\s;\\]+)\s*\\$")
HASH = re.compile(r"^    --hash=sha256:(?P<sha256>[0-9a-f]{64})$")
FILE = re.compile(r"^    # (?P<file>\S+\.whl), (?P<size>\d+) bytes$")


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """One distribution as it goes into an image: the exact file, by content."""

    name: str
    """Normalised distribution name."""
    version: str
    file: str
    size: int
    """Bytes."""
    sha256: str


class LeftOut(Frozen):
    """A requirement of upstream's wheel that the image does without."""

    name: str
    why: str = Field(min_length=1)


class Bound(Frozen):
    """A bound on a requirement that upstream leaves open."""

    requirement: str
    bases: tuple[str, ...]
    why: str = Field(min_length=1)


class LockRules(Frozen):
    """How a platform's requirements are resolved, as `images/locks/<platform>.toml` holds it."""

    python: str
    resolver_platform: str
    """uv's word for the oldest machine that the lock has to suit."""
    until: dict[str, str]
    """Base to a moment (RFC 3339): nothing that was uploaded later is taken."""
    left_out: tuple[LeftOut, ...] = ()
    bounds: tuple[Bound, ...] = ()

    def moment(self, base: str) -> str:
        """Return the moment up to which releases count for a base, or raise UsageError."""
        if base not in self.until:
            raise UsageError(
                f"no moment is set up to which releases count for base {base}",
                why="open-ended requirements would resolve to packages that the base was never run with",
                do="add the base's release date to [until] in the platform's file in images/locks/",
            )
        return self.until[base]


def belongs_to_torch(name: str) -> bool:
    """Tell whether a distribution is torch or comes only with its CUDA build; those stand in a lock of their own."""
    return name in ("torch", "triton", "pytorch-triton") or name.startswith(("nvidia-", "cuda-"))


def lock_text(wheels: tuple[LockedWheel, ...], header: tuple[str, ...]) -> str:
    """Return the lock as a requirement file that pip and uv read in hash mode, sorted by name."""
    lines = [f"# {line}" if line else "#" for line in header]
    for wheel in sorted(wheels, key=lambda each: each.name):
        lines.append(f"{wheel.name}=={wheel.version} \\")
        lines.append(f"    --hash=sha256:{wheel.sha256}")
        lines.append(f"    # {wheel.file}, {wheel.size} bytes")
    return "\n".join(lines) + "\n"


def parse_lock(text: str, origin: str) -> tuple[LockedWheel, ...]:
    """Parse a requirement lock.

    Raises:
        LockError: a line is not as :func:`lock_text` writes it, a name stands twice, or there is nothing in it.
    """
    body = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    wheels: list[LockedWheel] = []
    for index in range(0, len(body), 3):
        pin, sha256, file = (
            pattern.match(body[index + step]) if index + step < len(body) else None
            for step, pattern in enumerate((PIN, HASH, FILE))
        )
        if pin is None or sha256 is None or file is None:
            raise LockError(
                f"{origin}: not a pin with one hash and its file: {body[index].strip()}",
                do="restore it from git, or write it again: nox -s lock-requirements",
            )
        wheels.append(LockedWheel(pin["name"], pin["version"], file["file"], int(file["size"]), sha256["sha256"]))
    names = [wheel.name for wheel in wheels]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not wheels:
        raise LockError(
            f"{origin}: {twice[0]} stands twice" if twice else f"{origin} pins nothing",
            do="restore it from git, or write it again: nox -s lock-requirements",
        )
    return tuple(wheels)
