"""Fixes, their order, and what a fix is to a base."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from seatrial.model.errors import UsageError
from seatrial.model.values import Frozen, Identifier, Sha256


class Kind(StrEnum):
    """Whether a fix changes Python only, or sources that must be compiled."""

    PYTHON = "python"
    NATIVE = "native"


class Relation(StrEnum):
    """What an upstream reference is to a fix."""

    BACKPORT = "backport"
    RELATED = "related"
    REPORTED = "reported"


class Reference(Frozen):
    """An upstream pull request, issue or document."""

    url: str
    relation: Relation
    note: str = ""


class Shows(Frozen):
    """Smoke cases that a part of a defect turns red, so that a run without the fix can prove the fix is needed."""

    part: Identifier
    cases: tuple[str, ...] = Field(min_length=1)
    """Names as reports have them, `group/case`."""
    where: str = ""
    """On which machines it shows, when not on all."""


class Fix(Frozen):
    """A fix as its `fix.toml` describes it."""

    id: Identifier
    title: str
    kind: Kind
    why: str
    references: tuple[Reference, ...]
    platforms: tuple[str, ...]
    bases: tuple[str, ...]
    requires: tuple[Identifier, ...] = ()
    parts: tuple[Identifier, ...] = Field(min_length=1)
    """The halves of the defect that can be mended upstream one by one; findings name their part."""
    repair: bool = False
    """`seatrial repair <id> TREE` takes the defect out of a tree that no patch is made for."""
    drop_when: str
    proof: str
    shows: tuple[Shows, ...] = ()
    """What smoke sees of the defect, part by part; a part that stands nowhere is seen by other means."""


class Series(Frozen):
    """The order in which fixes are applied."""

    fixes: tuple[Identifier, ...]

    def position(self, fix_id: str) -> int:
        """Return a fix's place in the order, or raise UsageError naming those that exist."""
        if fix_id not in self.fixes:
            known = ", ".join(self.fixes) or "none"
            raise UsageError(
                f"there is no fix {fix_id!r}", why=f"patches/series.toml has: {known}", do="choose one of these"
            )
        return self.fixes.index(fix_id)


class Finding(Frozen):
    """One place where a detector sees its defect."""

    fix: Identifier
    part: Identifier
    path: str
    line: int = Field(ge=1)
    message: str
    """Why the place is wrong, in one sentence."""


class VerdictKind(StrEnum):
    """What a fix is to a base."""

    NOT_PRESENT = "not-present"
    APPLIES = "applies"
    UPSTREAM = "upstream"
    PARTLY = "partly"
    DRIFT = "drift"
    ORPHAN = "orphan"


class Verdict(Frozen):
    """A fix's verdict on one base, with what it was decided from."""

    fix: Identifier
    base: str
    kind: VerdictKind
    findings: tuple[Finding, ...] = ()
    patch: str | None = None
    """Path of the patch below `patches/`, when one for this base exists."""
    patch_fits: bool = False
    reason: str = ""


class AppliedFix(Frozen):
    """A fix as it went into a tree."""

    id: Identifier
    title: str
    kind: Kind
    verdict: VerdictKind
    patch_sha256: Sha256
    files: tuple[str, ...]
    """Paths that the patch touches."""
