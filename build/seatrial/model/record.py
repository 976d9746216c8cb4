"""The record: the release's one source of truth."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seatrial.model.base import Artifact, Comparison, Source
from seatrial.model.fixes import AppliedFix, VerdictKind
from seatrial.model.values import Frozen, Identifier, ImageDigest, Sha256


class RecordedBase(Frozen):
    """The upstream release that was built on."""

    version: str
    source: Source
    artifacts: tuple[Artifact, ...]
    comparisons: tuple[Comparison, ...]
    lock_sha256: Sha256


class SkippedFix(Frozen):
    """A fix of the series that this build does not hold, and why."""

    id: Identifier
    verdict: VerdictKind
    why: str


class RecordedWheel(Frozen):
    """The wheel inside the image."""

    file: str
    version: str
    mode: Literal["overlay", "source"]
    sha256: Sha256
    size: int


class RecordedImage(Frozen):
    """The image that was tried. Sizes are bytes."""

    digest: ImageDigest
    size: int
    base_image: str
    base_image_sha256: Sha256
    torch: str
    """Version with its local part, and where it came from."""


class RecordedReport(Frozen):
    """A report, by digest, with its counts."""

    kind: Literal["inspect", "smoke"]
    profile: str
    subject: ImageDigest
    sha256: Sha256
    device: str
    passed: int
    not_supported: tuple[str, ...]


class Record(Frozen):
    """Everything about one named image."""

    schema_id: Literal["seatrial.record/1"] = Field(default="seatrial.record/1", alias="schema")
    platform: str
    revision: int = Field(ge=1)
    base: RecordedBase
    fixes: tuple[AppliedFix, ...]
    skipped: tuple[SkippedFix, ...]
    series_sha256: Sha256
    requirements_sha256: Sha256
    inputs_sha256: Sha256
    """Digest over everything that decides the image's content."""
    wheel: RecordedWheel
    image: RecordedImage
    reports: tuple[RecordedReport, ...]
    names: tuple[str, ...]
    pushed: tuple[str, ...] = ()
    fallbacks: tuple[str, ...]
    """Second choices that were taken, one sentence each."""
    source_revision: str
    """seatrial's own commit, `-dirty` when the tree had changes."""
    created: str
