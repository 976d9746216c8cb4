"""Names and registries: the right image under the wrong name, a name that stands for another, half an upload."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from seatrial.model.errors import SeatrialError
from seatrial.model.names import REVISION_LABEL, NameStore
from seatrial.ports.engine_names import EngineNames
from seatrial.ports.registry import Registry
from seatrial.ports.registry_http import parse_target
from seatrial.ports.registry_names import RegistryNames
from seatrial.stages.naming import give_names
from seatrial.stages.push import Pushed, push_by_digest
from tests.faults.derive import derived
from tests.faults.good import Good, favourable
from tests.faults.judge import quiet
from tests.faults.model import Fault, Judged
from tests.nameslab import registry_server

Attempt = Callable[[Good], object]


def ends(attempt: Attempt) -> Callable[[Good], Judged]:
    """Return what an attempt ends with; one that succeeds was not refused."""

    def judge(good: Good) -> Judged:
        try:
            attempt(good)
        except SeatrialError as error:
            return Judged((error.label,), (f"{error.what}: {error.why}",), good.digest)
        return Judged((), (), good.digest)

    return judge


def name(good: Good, store: NameStore, digest: str, revision: int) -> tuple[str, ...]:
    """Name an image as a build does, all reports being good."""
    return give_names(
        store,
        digest,
        good.plan.line,
        revision,
        reports=[favourable(need, digest, good.policy) for need in good.policy.requirements],
        policy=good.policy,
        lock=good.scratch / f"{secrets.token_hex(4)}.lock",
        console=quiet(),
    )


@contextlib.contextmanager
def repository(good: Good) -> Iterator[EngineNames]:
    """Give a repository of its own in the engine; its names are gone afterwards."""
    store = EngineNames(good.client, f"seatrial-faults-{secrets.token_hex(6)}")
    try:
        yield store
    finally:
        for tag in store.tags():
            good.client.api.remove_image(f"{store.where}:{tag}", noprune=True)


@contextlib.contextmanager
def registry(good: Good) -> Iterator[tuple[Registry, Path]]:
    """Start an empty registry on loopback; gives a client and its folder."""
    if shutil.which("docker-registry") is None:
        raise RuntimeError("docker-registry is not installed (the distribution's package docker-registry)")
    with (
        tempfile.TemporaryDirectory(dir=good.scratch) as folder,
        registry_server(Path(folder)) as host,
        Registry(parse_target(f"{host}/team/vllm")) as client,
    ):
        yield client, Path(folder)


def push(good: Good, client: Registry, path: Path) -> Pushed:
    """Push the good image from an archive."""

    def save(target: Path) -> None:
        raise AssertionError(f"the engine was asked for {target}")

    return push_by_digest(good.digest, archive=path, save=save, size=0, registry=client, console=quiet())


def other_revision(good: Good) -> object:
    """Give the image the number of the next revision."""
    with repository(good) as store:
        return name(good, store, good.digest, 2)


def number_taken(good: Good) -> object:
    """Give a number that stands for another image already."""
    layer = good.layer()
    layer.label("org.example.other", "build")
    with repository(good) as store, derived(good.client, good.blobs, layer, "other") as (image, _):
        store.put_tag(good.plan.line.release_tag(1), image)
        return name(good, store, good.digest, 1)


def moving_unknown(good: Good) -> object:
    """Move a name forward from an image that says no revision, so that nobody knows what forward is."""
    layer = good.layer()
    layer.label(REVISION_LABEL, None)
    with repository(good) as store, derived(good.client, good.blobs, layer, "other") as (image, _):
        store.put_tag(good.plan.line.moving_tag, image)
        return name(good, store, good.digest, 1)


def pushed_other_revision(good: Good) -> object:
    """Push the image, and name it in the registry with a number that is not its own."""
    with registry(good) as (client, _):
        push(good, client, good.archive())
        return name(good, RegistryNames(client), good.digest, 7)


def cut_archive(good: Good) -> object:
    """Push from an archive whose end is missing."""
    whole = good.archive()
    with registry(good) as (client, folder):
        path = folder / "cut.tar"
        shutil.copyfile(whole, path)
        os.truncate(path, whole.stat().st_size * 2 // 3)
        return push(good, client, path)


def never_pushed(good: Good) -> object:
    """Name in a registry what it does not hold."""
    with registry(good) as (client, _):
        return name(good, RegistryNames(client), good.digest, 1)


def lost_blob(good: Good) -> object:
    """Lose a layer in the registry's storage between push and name: the tag then answers 404 for it."""
    with registry(good) as (client, folder):
        push(good, client, good.archive())
        layer = good.blobs.manifest["layers"][-1]["digest"].removeprefix("sha256:")
        held = next((folder / "storage").rglob(f"{layer}/data"))
        held.unlink()
        return name(good, RegistryNames(client), good.digest, 1)


REGISTRY_FAULTS: tuple[Fault, ...] = (
    Fault(
        "name-other-revision",
        21,
        "stale",
        "integrity",
        ("cannot become revision 2", "states 1"),
        "the tag would say one revision and the image another",
        judge=ends(other_revision),
        subject="registry",
    ),
    Fault(
        "name-taken",
        21,
        "stale",
        "refused",
        ("already stands for", "given once"),
        "a released number would stand for other bytes",
        judge=ends(number_taken),
        subject="registry",
    ),
    Fault(
        "name-moving-unknown",
        25,
        "tag",
        "refused",
        ("states no revision", "forward"),
        "a moving name would go to nobody knows where",
        judge=ends(moving_unknown),
        subject="registry",
    ),
    Fault(
        "registry-other-revision",
        21,
        "stale",
        "integrity",
        ("cannot become revision 7",),
        "the registry's tag would say one revision and the image another",
        judge=ends(pushed_other_revision),
        subject="registry",
    ),
    Fault(
        "registry-cut-archive",
        28,
        "tag",
        "integrity",
        ("archive",),
        "half an image would go up",
        judge=ends(cut_archive),
        subject="registry",
    ),
    Fault(
        "registry-not-there",
        28,
        "tag",
        "registry",
        ("sha256",),
        "a tag would go live before its image",
        judge=ends(never_pushed),
        subject="registry",
    ),
    Fault(
        "registry-lost-blob",
        28,
        "tag",
        "registry",
        ("MANIFEST_BLOB_UNKNOWN",),
        "the registry lost a layer, and a tag would go live without it",
        judge=ends(lost_blob),
        subject="registry",
    ),
)
