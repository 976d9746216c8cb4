"""What an image stands on, and what was built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class BaseImage:
    """The system that an image stands on."""

    kind: Literal["pulled", "bootstrapped"]
    name: str
    """For the record: the reference, or suite and way."""
    sha256: str
    """Bare digest of the pulled manifest, or of the bootstrapped tar."""
    tar: Path | None
    reference: str | None
    packages: dict[str, str]
    """Debian package to version; empty for a pulled one, whose own file system says it."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image that the engine holds without a name."""

    digest: str
    """Manifest digest and Id, `sha256:...`."""
    size: int
    """Bytes, as the engine counts them."""
    archive_bytes: int
    """Size of the OCI archive that it was loaded from; the archive itself is gone."""
