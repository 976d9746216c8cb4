"""Build an image from its pinned pieces, load it into the engine without a name, and tell its digest."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import docker

from seatrial.model.errors import BuildError, IntegrityError
from seatrial.model.image import BaseImage, BuiltImage
from seatrial.model.platforms import Setting
from seatrial.model.requirements import LockRules
from seatrial.ports import engine
from seatrial.ports.buildx import Build, build_archive
from seatrial.ports.console import Console
from seatrial.ports.files import disk_errors, need_room, scratch_beside, sweep_beside
from seatrial.ports.links import link
from seatrial.ports.uv import uv_program

EXPANSION = 1.2
"""Archive bytes for each byte of wheels, at most; measured 0.9 to 1.0 with the compression used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """Everything that decides an image's bytes."""

    folder: Path
    """`images/<family>`: the Dockerfile and its scripts."""
    base: BaseImage
    wheels: Path
    """Laid out wheelhouse: `torch/` and `rest/`."""
    upstream: Path
    """The base's wheel as upstream built it."""
    patched: Path
    """The wheel that takes its place in the last layer."""
    labels: Mapping[str, str]
    environment: Sequence[Setting]
    """Variables of the platform's row."""
    epoch: int
    """SOURCE_DATE_EPOCH, seconds."""
    machine: str = "x86_64"


def epoch_of(rules: LockRules, base: str) -> int:
    """Return the moment up to which releases count for a base as SOURCE_DATE_EPOCH."""
    return int(datetime.fromisoformat(rules.moment(base)).timestamp())


def build_image(
    request: ImageRequest,
    *,
    work: Path,
    client: docker.DockerClient,
    console: Console,
    look: Callable[[Path, str], None] = lambda archive, digest: None,
) -> BuiltImage:
    """Build, load without a name, and check that the engine's Id is the digest that was built.

    The archive only exists between the two and is removed with all else that was laid out here, whatever happens.

    Args:
        work: a folder for temporary files, on the file system of the wheel cache so that files can be linked.
        look: called with the archive and its digest while the archive is there.

    Raises:
        BuildError: a step of the Dockerfile failed.
        EngineError: the engine went away.
        DiskError: no room here or there.
        IntegrityError: the engine holds something else than what was built.
    """
    wheels = sum(path.stat().st_size for path in request.wheels.rglob("*.whl"))
    sweep_beside(work / "image")
    need_room(work, int(wheels * EXPANSION), "the image's archive")
    with scratch_beside(work / "image") as scratch:
        build = lay_build(request, scratch)
        archive = scratch / "image.tar"
        console.detail(f"building: {wheels / 1e6:.0f} MB of wheels, {len(build.labels)} labels, no network")
        digest = build_archive(build, archive)
        size = archive.stat().st_size
        look(archive, digest)
        console.detail(f"built {digest}, archive {size / 1e6:.0f} MB; loading it without a name")
        if not engine.holds(client, digest):
            loaded = engine.load_archive(client, archive)
            if loaded != digest:
                raise IntegrityError(
                    f"the engine calls the image {loaded}, and {digest} was built",
                    do="see that its containerd image store is on",
                )
    if not engine.holds(client, digest):
        raise IntegrityError(f"the engine does not hold {digest} after loading it", do="run the same again")
    return BuiltImage(digest, engine.image_size(client, digest), size)


def lay_build(request: ImageRequest, scratch: Path) -> Build:
    """Lay out the contexts of a build below `scratch` and return the build; hard links, no copies."""
    context = scratch / "context"
    with disk_errors(scratch):
        shutil.copytree(request.folder, context, ignore=shutil.ignore_patterns("__pycache__"))
        tools = scratch / "tools"
        tools.mkdir()
        # Copied: it is small, and its environment may lie on another file system.
        shutil.copy(uv_program(), tools / "uv")
    contexts = {"wheels": str(request.wheels), "tools": str(tools)}
    for name, wheel in (("upstream", request.upstream), ("patched", request.patched)):
        place = scratch / name
        place.mkdir()
        link(wheel, place / wheel.name)
        contexts[name] = str(place)
    if request.base.tar is not None:
        link(request.base.tar, context / "base.tar")
    elif request.base.reference is not None:
        contexts["base"] = f"docker-image://{request.base.reference}"
    dockerfile = scratch / "Dockerfile"
    dockerfile.write_text(dockerfile_text(context / "Dockerfile", request.environment), encoding="utf-8")
    (context / "Dockerfile").unlink()
    return Build(context, dockerfile, contexts, request.labels, request.epoch, platform=_oci_platform(request.machine))


def dockerfile_text(path: Path, environment: Sequence[Setting]) -> str:
    """Return the family's Dockerfile with the row's variables set at its end, where they disturb no cached step.

    Raises:
        BuildError: the file is not there, or a value cannot stand in a Dockerfile.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BuildError(f"{path.name} of this platform's family does not exist", do="restore it from git") from None
    lines = []
    for setting in environment:
        if any(character in setting.value for character in '"\\$\n'):
            raise BuildError(
                f"{setting.name} has a value that a Dockerfile would not keep as it is: {setting.value!r}",
                do="choose a value without quotes, backslashes and dollar signs",
            )
        lines.append(f'ENV {setting.name}="{setting.value}"\n')
    return text.rstrip("\n") + "\n" + "".join(lines)


def _oci_platform(machine: str) -> str:
    return "linux/" + {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
