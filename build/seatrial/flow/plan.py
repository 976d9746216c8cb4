"""The plan of a build: every choice and every mistake in the input, before the first side effect."""

from __future__ import annotations

import platform as host
import re
from dataclasses import dataclass
from pathlib import Path

from seatrial.flow.project import Project, choose_base
from seatrial.model.base import BaseLock
from seatrial.model.errors import LockError, UnsupportedError, UsageError
from seatrial.model.gate import Requirement
from seatrial.model.names import Line
from seatrial.model.platforms import Platform
from seatrial.model.series import LoadedSeries
from seatrial.ports.console import Console
from seatrial.ports.registry_http import parse_target
from seatrial.stages.base_image import nothing_to_pull
from seatrial.stages.fix_files import load_series
from seatrial.stages.inspect.table import CASES
from seatrial.stages.lock_requirements import load_rules
from seatrial.stages.smoke import expected_cases
from seatrial.stages.wheelhouse import read_requirement_lock


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What the user asked for."""

    platform: str
    base: str | None = None
    without: tuple[str, ...] = ()
    base_image: str = "auto"
    base_image_ref: str | None = None
    push: str | None = None
    revision: int | None = None
    setup: bool = True


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Everything that a build will use; made by reading alone."""

    request: BuildRequest
    platform: Platform
    lock: BaseLock
    series: LoadedSeries
    line: Line
    image_folder: Path
    requirement_locks: tuple[Path, ...]
    requirements: tuple[Requirement, ...]
    """Reports that the gate will want."""
    out: Path

    @property
    def stack(self) -> tuple[str, ...]:
        """Return the fixes that are meant for this platform and not left out, in order."""
        return tuple(
            loaded.id
            for loaded in self.series.ordered()
            if loaded.suits(self.platform) and loaded.id not in self.request.without
        )


def make_plan(project: Project, request: BuildRequest) -> BuildPlan:
    """Read every table and lock that a build needs and refuse what cannot work.

    Raises:
        UsageError: an unknown platform, base, fix or word.
        UnsupportedError: the platform still lacks something, or this machine is of another kind.
        LockError: a table or lock is missing, malformed or edited by hand.
    """
    row = project.platform_table().row(request.platform)
    if request.base is not None:
        project.base_lock(request.base)
    series = load_series(project.patches)
    series.check_without(request.without)
    if row.missing:
        raise UnsupportedError(
            f"{row.name} cannot be built yet",
            why=row.missing,
            do="see the matrix in README.md; nox -s build-cpu is built to the end",
        )
    if host.machine() != row.machine:
        raise UnsupportedError(
            f"{row.name} is built on {row.machine}, this machine is {host.machine()}", do=f"build it on a {row.machine}"
        )
    _check_words(request)
    lock = project.base_lock(choose_base(row, request.base))
    if row.artifact is None:
        raise LockError(f"platform {row.name} names no upstream wheel", do="add artifact to its row")
    lock.artifact(row.artifact)
    lock.torch_for(row.family)
    image_folder = project.images / row.family
    if not (image_folder / "Dockerfile").is_file():
        raise LockError(f"images/{row.family}/Dockerfile does not exist", do="restore it from git")
    locks = tuple(sorted((project.images / "locks").glob(f"{lock.version}-{row.name}*.txt")))
    if not any(path.name == f"{lock.version}-{row.name}.txt" for path in locks):
        raise LockError(
            f"images/locks/{lock.version}-{row.name}.txt does not exist",
            do=f"write it: nox -s lock-requirements -- {row.name} --base {lock.version}",
        )
    _check_locks(project, locks, row.name, lock)
    return BuildPlan(
        request=request,
        platform=row,
        lock=lock,
        series=series,
        line=Line(base=lock.version, platform=row.name),
        image_folder=image_folder,
        requirement_locks=locks,
        requirements=_requirements(project, row, lock.version),
        out=project.out(lock.version, row.name),
    )


def _check_locks(project: Project, locks: tuple[Path, ...], platform: str, lock: BaseLock) -> None:
    """Read what the image stage will read later, so that a mistake in it is said now."""
    for path in locks:
        read_requirement_lock(path)
    load_rules(project.images / "locks" / f"{platform}.toml").moment(lock.version)


def _check_words(request: BuildRequest) -> None:
    if request.revision is not None and request.revision < 1:
        raise UsageError(f"there can be no revision {request.revision}", do="give a whole number from 1 on")
    if request.push is not None:
        parse_target(request.push)
    if request.base_image == "pull" and request.base_image_ref is None:
        raise nothing_to_pull()
    if request.base_image_ref is not None and not re.search(r"@sha256:[0-9a-f]{64}$", request.base_image_ref):
        raise UsageError(
            f"{request.base_image_ref!r} does not name an image by digest", do="give it as NAME@sha256:DIGEST"
        )


def _requirements(project: Project, row: Platform, base: str) -> tuple[Requirement, ...]:
    inspect = Requirement(kind="inspect", profile="inspect", cases=CASES)
    smoke = tuple(expected_cases(project.smoke_tests, profile, base, row.name) for profile in row.profiles)
    return (inspect, *smoke)


def say_plan(plan: BuildPlan, console: Console) -> None:
    """Print what is going to happen."""
    lock, row = plan.lock, plan.platform
    console.line(
        f"seatrial build {row.name}, base {lock.version} ({lock.source.tag}, {lock.source.commit[:12]})", style="bold"
    )
    artifact = lock.artifact(row.artifact) if row.artifact else None
    if artifact is not None:
        console.detail(f"wheel from {artifact.file}: {artifact.built_by}")
    console.detail(f"fixes: {', '.join(plan.stack) or 'none'}")
    if plan.request.without:
        console.detail(f"left out on request: {', '.join(plan.request.without)} (so there will be no name)")
    console.detail(f"smoke: {', '.join(row.profiles)}; name: vllm:{plan.line.moving_tag}-rN")
