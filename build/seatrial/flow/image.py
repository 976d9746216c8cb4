"""What an image stands on, and the image itself; nothing is done when nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import docker

from seatrial.flow.plan import BuildPlan
from seatrial.flow.shop import Shop
from seatrial.model.errors import UsageError
from seatrial.model.expectation import recorded_digest
from seatrial.model.image import BaseImage, BuiltImage
from seatrial.model.record import RecordedImage
from seatrial.model.requirements import LeftOut, LockedWheel
from seatrial.model.values import digest_of
from seatrial.ports import engine
from seatrial.ports.files import CHUNK, scratch_beside, sha256_file
from seatrial.ports.layers import keep_summary, read_layers, summary
from seatrial.ports.pip_config import read_pip_config
from seatrial.ports.receipts import Receipts
from seatrial.ports.wheelfile import recorded_lines
from seatrial.stages.base_image import Mode, base_image
from seatrial.stages.engine_ready import engine_ready, programs_ready
from seatrial.stages.fetch import fetch_artifact
from seatrial.stages.image import ImageRequest, epoch_of
from seatrial.stages.image import build_image as build
from seatrial.stages.inspect import keeps_of_layers
from seatrial.stages.lock_requirements import load_rules
from seatrial.stages.wheelhouse import Requirements, Sources, choose_requirements, fetch_requirements, lay_wheelhouse

LAYERS = "layers"
"""Folder of the cache with what the layers of built images hold and hide."""

MODES: Mapping[str, Mode] = {"pull": "pull", "bootstrap": "bootstrap", "auto": "auto"}


@dataclass(frozen=True, slots=True)
class Ground:
    """The engine, the base system and the run-time requirements of one build."""

    client: docker.DockerClient
    base: BaseImage
    requirements: Requirements
    left_out: tuple[LeftOut, ...]
    """Requirements of upstream's wheel that the image does without."""
    epoch: int
    """SOURCE_DATE_EPOCH of the image, seconds."""
    identity: str
    """Digest over all that goes into the image beside vLLM."""

    @property
    def installed(self) -> dict[str, str]:
        """Return the distributions of the requirement locks, normalised name to version."""
        return self.requirements.versions

    @property
    def requirements_sha256(self) -> str:
        """Return the digest over the requirements that were chosen."""
        return sha256(self.requirements.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class MadeImage:
    """An image in the engine, without a name."""

    digest: str
    size: int
    """Bytes, as the engine counts them."""
    recorded: RecordedImage


def lay_ground(shop: Shop, plan: BuildPlan, receipts: Receipts, code: str) -> Ground:
    """Have an engine, a base system and a choice of requirements.

    Raises:
        EngineError: no engine answers and none may be set up.
        FetchError, BuildError: the base system cannot be had.
    """
    request = plan.request
    if request.base_image not in MODES:
        raise UsageError(f"there is no way {request.base_image!r} to a base system", do=f"one of: {', '.join(MODES)}")
    client = engine_ready(setup=request.setup, console=shop.console)
    programs_ready(["git", "mmdebstrap"], setup=request.setup, console=shop.console)
    base = base_image(MODES[request.base_image], request.base_image_ref, cache=shop.cache.root, console=shop.console)
    requirements = _requirements(shop, plan, receipts, code)
    rules = load_rules(shop.project.images / "locks" / f"{plan.platform.name}.toml")
    epoch = epoch_of(rules, plan.lock.version)
    identity = digest_of(
        {
            "base": base.sha256,
            "requirements": requirements.text,
            "folder": shop.project.code_digest(plan.image_folder),
            "epoch": epoch,
        }
    )
    return Ground(client, base, requirements, rules.left_out, epoch, identity)


def wheel_records(shop: Shop, ground: Ground, wheel: Path) -> dict[str, str]:
    """Return for each distribution of the image the digest over its wheel's RECORD, read from the wheels themselves.

    Args:
        wheel: the patched vLLM.
    """
    records = {"vllm": recorded_digest(recorded_lines(wheel))}
    places = {one.name: next(shop.cache.path_of(one.sha256).glob("*.whl"), None) for one in ground.requirements.wheels}
    if None in places.values():
        paths = fetch_requirements(ground.requirements, index=shop.index, cache=shop.cache, console=shop.console)
        places = {one.name: path for one, path in zip(ground.requirements.wheels, paths, strict=True)}
    for name, path in places.items():
        if path is not None:
            records[name] = recorded_digest(recorded_lines(path))
    return records


def _requirements(shop: Shop, plan: BuildPlan, receipts: Receipts, code: str) -> Requirements:
    """Choose the requirements; a choice that was made holds as long as the locks do, so that a build stays the same."""
    inputs = {path.name: sha256_file(path) for path in plan.requirement_locks} | {"code": code}
    known = receipts.find("requirements", inputs)
    if known is not None:
        shop.console.detail("unchanged: the choice of requirements stands")
        for text in known["fallbacks"]:
            shop.console.fallback(text)
        return Requirements(
            torch=tuple(LockedWheel(**entry) for entry in known["torch"]),
            rest=tuple(LockedWheel(**entry) for entry in known["rest"]),
            torch_origin=known["torch_origin"],
        )
    before = list(shop.console.fallbacks)
    chosen = choose_requirements(
        plan.lock.version,
        plan.platform.name,
        plan.lock.torch_for(plan.platform.family),
        sources=Sources(shop.project.images / "locks", shop.index, read_pip_config(), shop.cache),
        console=shop.console,
    )
    outputs = {
        "torch": [asdict(wheel) for wheel in chosen.torch],
        "rest": [asdict(wheel) for wheel in chosen.rest],
        "torch_origin": chosen.torch_origin,
        "fallbacks": [text for text in shop.console.fallbacks if text not in before],
    }
    fetch_requirements(chosen, index=shop.index, cache=shop.cache, console=shop.console)
    receipts.leave("requirements", inputs, outputs)
    return chosen


def made_image(
    shop: Shop,
    plan: BuildPlan,
    ground: Ground,
    wheel: Path,
    labels: Mapping[str, str],
    *,
    receipts: Receipts,
    code: str,
) -> MadeImage:
    """Build the image and load it nameless, or find it in the engine as it was built before."""
    inputs = {
        "ground": ground.identity,
        "wheel": sha256_file(wheel),
        "labels": dict(labels),
        "environment": [setting.model_dump(mode="json") for setting in plan.platform.environment],
        "code": code,
    }
    known = receipts.find("image", inputs, lost=lambda outputs: _lost(ground, outputs))
    if known is not None:
        shop.console.detail(f"unchanged: {known['digest']}")
        return _made(ground, BuiltImage(known["digest"], known["size"], known["archive_bytes"]))
    assert plan.platform.artifact is not None
    upstream = fetch_artifact(
        plan.lock, plan.platform.artifact, cache=shop.cache, index=shop.index, console=shop.console
    )
    paths = fetch_requirements(ground.requirements, index=shop.index, cache=shop.cache, console=shop.console)
    work = shop.cache.root / "work"
    with scratch_beside(work / "wheels") as wheels:
        lay_wheelhouse(ground.requirements, paths, wheels)
        request = ImageRequest(
            folder=plan.image_folder,
            base=ground.base,
            wheels=wheels,
            upstream=upstream,
            patched=wheel,
            labels=labels,
            environment=plan.platform.environment,
            epoch=ground.epoch,
            machine=plan.platform.machine,
        )
        built = build(request, work=work, client=ground.client, console=shop.console, look=_look_into(shop))
    outputs = {"digest": built.digest, "size": built.size, "archive_bytes": built.archive_bytes}
    receipts.leave("image", inputs, outputs)
    return _made(ground, built)


def _look_into(shop: Shop) -> Callable[[Path, str], None]:
    """Return what reads the layers where they are built: an engine gives them back at 60 MB/s."""

    def look(archive: Path, digest: str) -> None:
        with archive.open("rb") as stream:
            layers = read_layers(iter(lambda: stream.read(CHUNK), b""), keeps_of_layers)
        keep_summary(summary(layers), shop.cache.root / LAYERS, digest)

    return look


def _lost(ground: Ground, outputs: dict[str, Any]) -> str:
    if engine.holds(ground.client, str(outputs["digest"])):
        return ""
    return f"the engine does not hold {outputs['digest']} any more"


def _made(ground: Ground, built: BuiltImage) -> MadeImage:
    recorded = RecordedImage(
        digest=built.digest,
        size=built.size,
        base_image=ground.base.name,
        base_image_sha256=ground.base.sha256,
        torch=ground.requirements.torch_origin,
    )
    return MadeImage(built.digest, built.size, recorded)
