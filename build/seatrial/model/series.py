"""A loaded series: fixes with their detectors and patches, and what a series does to a tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from seatrial.model.errors import FixError, IntegrityError, UsageError
from seatrial.model.fixes import AppliedFix, Finding, Fix, Kind, Series, Verdict
from seatrial.model.platforms import Platform
from seatrial.model.record import SkippedFix
from seatrial.model.tree import Tree
from seatrial.model.values import Frozen, Sha256, digest_of


class Detector(Protocol):
    """What a `defect.py` module offers."""

    def subject(self, tree: Tree, /) -> bool:
        """Tell whether the code in which the defect can live is in the tree at all."""
        ...

    def detect(self, tree: Tree, /) -> list[Finding]:
        """Return every place of the tree that has the defect."""
        ...


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch file, as it stands below `patches/`."""

    path: str
    """POSIX path below `patches/`: `<fix>/<base>.patch`."""
    data: bytes
    sha256: str
    files: tuple[str, ...]
    """Paths of the vLLM tree that it touches, sorted."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What a detector says of a tree."""

    subject: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class LoadedFix:
    """A fix with its detector and its patches, ready to use."""

    fix: Fix
    detector: Detector
    patches: Mapping[str, Patch]
    code_sha256: str = ""
    """Digest over `fix.toml` and `defect.py`: what its findings depend on, beside the engine and the tree."""

    @property
    def id(self) -> str:
        """Return the fix's identifier."""
        return self.fix.id

    def patch(self, base: str) -> Patch | None:
        """Return the patch for a base, if there is one."""
        return self.patches.get(base)

    def suits(self, platform: Platform) -> bool:
        """Tell whether the fix is meant for a platform; `fix.toml` names rows or whole families."""
        return platform.name in self.fix.platforms or platform.family in self.fix.platforms

    def examine(self, tree: Tree) -> Examination:
        """Run the detector over a tree, findings sorted by place.

        Raises:
            FixError: the detector itself failed, or named another fix or an unknown part.
            IntegrityError: a module of the tree is no Python.
        """
        try:
            subject = self.detector.subject(tree)
            findings = tuple(self.detector.detect(tree))
            if strange := [found for found in findings if not isinstance(found, Finding)]:
                raise TypeError(f"{strange[0]!r} is no Finding")
        except IntegrityError as error:
            raise IntegrityError(f"{tree.origin}: {error.what}", why=error.why, do=error.do) from error
        except (Exception, SystemExit) as error:
            raise FixError(
                f"the detector of {self.id} failed on {tree.origin}",
                why=f"{type(error).__name__}: {error}",
                do=f"mend patches/{self.id}/defect.py",
            ) from error
        for finding in findings:
            if finding.fix != self.id or finding.part not in self.fix.parts:
                raise FixError(
                    f"the detector of {self.id} reports {finding.fix}/{finding.part}",
                    why=f"its fix.toml declares the parts {', '.join(self.fix.parts)}",
                    do=f"mend patches/{self.id}/defect.py",
                )
        if findings and not subject:
            raise FixError(
                f"the detector of {self.id} finds its defect in a tree that it calls free of the subject",
                do=f"mend subject() in patches/{self.id}/defect.py",
            )
        return Examination(subject, tuple(sorted(findings, key=lambda found: (found.path, found.line, found.part))))


@dataclass(frozen=True, slots=True)
class LoadedSeries:
    """Every fix, in the order of application."""

    series: Series
    fixes: Mapping[str, LoadedFix]

    def ordered(self) -> tuple[LoadedFix, ...]:
        """Return the fixes in order."""
        return tuple(self.fixes[fix_id] for fix_id in self.series.fixes)

    def reduced(self, without: Collection[str]) -> LoadedSeries:
        """Return the series without some fixes."""
        kept = tuple(fix_id for fix_id in self.series.fixes if fix_id not in without)
        return LoadedSeries(Series(fixes=kept), {fix_id: self.fixes[fix_id] for fix_id in kept})

    def examine(self, tree: Tree) -> dict[str, Examination]:
        """Run every detector over a tree."""
        return {loaded.id: loaded.examine(tree) for loaded in self.ordered()}

    def check_without(self, without: Collection[str]) -> None:
        """Refuse to leave out a fix that does not exist, or that a fix which stays requires.

        Raises:
            UsageError: names the fix and what is wrong with leaving it out.
        """
        for fix_id in without:
            self.series.position(fix_id)
        for loaded in self.ordered():
            if loaded.id in without:
                continue
            for required in loaded.fix.requires:
                if required in without:
                    raise UsageError(
                        f"{required} cannot be left out",
                        why=f"{loaded.id} requires it",
                        do=f"leave out both: --without {required} --without {loaded.id}",
                    )


class PatchedTree(Frozen):
    """A base with its fixes applied, as a git work tree whose commits are the fixes."""

    root: Path
    base: str
    platform: str
    base_commit: str
    """Commit of the pristine tree; the same tree always has the same one."""
    commit: str
    """Commit of the last fix, or `base_commit`."""
    applied: tuple[AppliedFix, ...]
    skipped: tuple[SkippedFix, ...]
    verdicts: tuple[Verdict, ...]
    series_sha256: Sha256
    changed: tuple[str, ...]
    """Paths whose bytes must come from `root`: changed or new."""
    added: tuple[str, ...]
    """The new ones among `changed`."""
    removed: tuple[str, ...]

    @property
    def native(self) -> tuple[str, ...]:
        """Return the applied fixes that need compiling, so that overlay mode can refuse."""
        return tuple(fix.id for fix in self.applied if fix.kind is Kind.NATIVE)


class FixStatus(Frozen):
    """One row of the status table."""

    id: str
    title: str
    kind: Kind
    platforms: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    """One a base, in the table's order."""


class StatusTable(Frozen):
    """Fixes by bases."""

    bases: tuple[str, ...]
    fixes: tuple[FixStatus, ...]


class CheckedTree(Frozen):
    """What all detectors together say of a tree."""

    origin: str
    detectors: tuple[str, ...]
    """Fixes whose detector ran."""
    absent: tuple[str, ...]
    """Those among them whose subject is not in this tree."""
    findings: tuple[Finding, ...]
    cures: dict[str, str]
    """Fix id to its title and the bases that it has a patch for."""


def series_digest(applied: Collection[AppliedFix]) -> str:
    """Return one digest over the applied patches in order: ids, verdicts and bytes."""
    return digest_of([[fix.id, fix.verdict.value, fix.patch_sha256] for fix in applied])


class ExportedPatch(Frozen):
    """A patch file that an export wrote, or found as it should be."""

    path: str
    """POSIX path below `patches/`."""
    changed: bool
