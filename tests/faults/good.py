"""The good artifacts that faults are seeded into: an image that the gate named, its tree and its wheel."""

from __future__ import annotations

import copy
import io
import os
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import docker

from seatrial.flow.image import lay_ground, wheel_records
from seatrial.flow.materials import patched_tree, patched_wheel
from seatrial.flow.naming import policy_of
from seatrial.flow.plan import BuildPlan, BuildRequest, make_plan
from seatrial.flow.project import Project
from seatrial.flow.shop import Shop, open_shop
from seatrial.flow.trial import expectation_of
from seatrial.model.errors import UsageError
from seatrial.model.expectation import Expectation
from seatrial.model.gate import Decision, Policy, Requirement, decide
from seatrial.model.labels import SOURCE_LABEL, make_labels
from seatrial.model.names import INPUTS_LABEL, REPOSITORY, REVISION_LABEL
from seatrial.model.report import Case, Device, Outcome, Report
from seatrial.model.series import PatchedTree
from seatrial.ports import layers as layers_of
from seatrial.ports import rootfs
from seatrial.ports.console import Console
from seatrial.ports.engine_names import save_archive
from seatrial.ports.images import DockerImages, ImageFacts
from seatrial.ports.receipts import Receipts
from seatrial.ports.rootfs import RootFs, Wants
from seatrial.ports.trees import SourceTree, open_tree
from seatrial.stages.fetch import fetch_tree
from seatrial.stages.inspect import image as inspect_module
from seatrial.stages.inspect import secrets
from seatrial.stages.inspect.environment import Environment, python_environment
from tests.faults.cheap import Known, Reading
from tests.faults.derive import Blobs, Layer, read_blobs

PLATFORM = "cpu"
WANTS = Wants(keep=inspect_module._keeps, digest=inspect_module._digests)
"""What inspect itself asks the reader for."""


@dataclass
class Good:
    """One base's good image with everything that faults and the gate need to know of it."""

    client: docker.DockerClient
    shop: Shop
    plan: BuildPlan
    tree: PatchedTree
    wheel: Path
    expected: Expectation
    policy: Policy
    facts: ImageFacts
    blobs: Blobs
    scratch: Path
    known: Known = field(default_factory=Known)
    _read: dict[str, bytes] = field(default_factory=dict)
    _reading: Reading | None = None
    _python: Environment | None = None
    _lock: Lock = field(default_factory=Lock)
    _opening: Lock = field(default_factory=Lock)

    @property
    def digest(self) -> str:
        """Return the image's digest."""
        return self.facts.digest

    @property
    def reading(self) -> Reading:
        """Return what the shipped readers make of the image; it is read when it is first asked for.

        It holds for this process and its forks alone: symbols are kept by hashes that another process salts anew.
        """
        with self._opening:
            if self._reading is None:
                self._reading = read_whole(DockerImages(self.client), self.digest)
            return self._reading

    @property
    def python(self) -> Environment:
        """Return the image's Python environment."""
        if self._python is None:
            self._python = python_environment(self.root, self.facts)
        return self._python

    @property
    def root(self) -> RootFs:
        """Return the image's file system."""
        return self.reading.root

    def layer(self) -> Layer:
        """Return an empty layer over this image."""
        return Layer(self.root, self.python, self.read, self.pristine, copy.deepcopy(self.blobs.config))

    def read(self, path: str) -> bytes:
        """Return a file's bytes, through a container that is never started."""
        real = self.root.resolve(path) or path
        with self._lock:
            if real not in self._read:
                self._read[real] = read_file(self.client, self.digest, real)
            return self._read[real]

    def pristine(self, name: str) -> bytes:
        """Return a file of the base's tree as it was before any fix."""
        return self._source().read(name)

    def pristine_tree(self) -> Path:
        """Return the base's tree as it was before any fix, unpacked once."""
        folder = self.scratch / f"pristine-{self.plan.lock.version}"
        with self._lock:
            if not folder.is_dir():
                tree = self._source()
                for name in tree.paths():
                    path = folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(tree.read(name))
        return folder

    def archive(self) -> Path:
        """Return the image as an OCI archive, written once."""
        path = self.scratch / f"{self.digest.removeprefix('sha256:')}.tar"
        with self._lock:
            if not path.is_file():
                part = path.with_suffix(f".{os.getpid()}")  # two processes may both be the first to ask
                save_archive(self.client, self.digest, part)
                part.rename(path)
        return path

    def _source(self) -> SourceTree:
        plan, shop = self.plan, self.shop
        kept = fetch_tree(plan.lock, plan.platform.artifact, cache=shop.cache, index=shop.index, console=shop.console)
        return open_tree(kept.path)

    def decide(self, digest: str, *reports: Report) -> Decision:
        """Ask the gate; what no report is about counts as tried and good, so that the given ones decide alone."""
        told = {(report.kind, report.profile) for report in reports}
        rest = [need for need in self.policy.requirements if (need.kind, need.profile) not in told]
        return decide(digest, [*reports, *(favourable(need, digest, self.policy) for need in rest)], self.policy)


def favourable(need: Requirement, digest: str, policy: Policy) -> Report:
    """Return a report with which the gate has nothing to object."""
    passed = tuple(Case(name=name, outcome=Outcome.PASSED) for name in need.cases if name not in need.not_supported)
    declared = tuple(
        Case(name=name, outcome=Outcome.NOT_SUPPORTED, reason=why) for name, why in need.not_supported.items()
    )
    return Report(
        schema="seatrial.report/1",
        kind=need.kind,
        profile=need.profile,
        subject=digest,
        subject_kind="image",
        platform=policy.platform,
        base=policy.base,
        device=Device(kind=policy.device, name="taken as good, so that another report decides"),
        started="2026-12-01T00:00:00Z",
        seconds=0.0,
        cases=(*passed, *declared),
    )


def read_file(client: docker.DockerClient, image: str, path: str) -> bytes:
    """Return the bytes of one file of an image."""
    container = client.api.create_container(image, "never-started")["Id"]
    try:
        stream, _ = client.api.get_archive(container, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
            member = tar.next()
            found = tar.extractfile(member) if member is not None else None
            assert found is not None
            return found.read()
    finally:
        client.api.remove_container(container, force=True, v=True)


def read_whole(engine: DockerImages, image: str) -> Reading:
    """Read an image as inspect does, file system and layers side by side."""

    def layers() -> tuple[layers_of.Layer, ...]:
        with engine.archive(image) as chunks:
            return layers_of.read_layers(chunks, secrets.keeps)

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(layers)
        with engine.export(image) as chunks:
            root = rootfs.read_rootfs(chunks, WANTS)
        return Reading(root, beside.result())


def open_good(client: docker.DockerClient, checkout: Path, base: str, scratch: Path, console: Console) -> Good:
    """Return the newest named image of a base, read, with what this checkout says that it must be.

    Args:
        checkout: the checkout that the image was built from.
        scratch: a folder of its own; the tree and the wheel are made there again, from the locks and patches.

    Raises:
        UsageError: the engine holds no such image, or it is no build of this checkout.
        SeatrialError: whatever a build may end with.
    """
    shop = open_shop(Project(checkout), console)
    plan = make_plan(shop.project, BuildRequest(platform=PLATFORM, base=base, setup=False))
    plan = replace(plan, out=scratch / f"{base}-{PLATFORM}")
    name = f"{REPOSITORY}:{plan.line.moving_tag}"
    facts = DockerImages(client).facts(name)
    receipts = Receipts(plan.out / "receipts", console)
    tree = patched_tree(shop, plan, receipts, "faults")
    revision = int(facts.labels.get(REVISION_LABEL, "0"))
    wheel, recorded = patched_wheel(shop, plan, tree, revision, receipts=receipts, code="faults")
    ground = lay_ground(shop, plan, receipts, "faults")
    labels = _labels(plan, tree, recorded.version, facts.labels, ground.epoch)
    expected = expectation_of(
        plan,
        tree,
        recorded,
        installed=ground.installed,
        labels=labels,
        left_out=ground.left_out,
        records=wheel_records(shop, ground, wheel),
        operators=shop.project.operator_list(plan.lock.version, plan.platform.name),
    )
    if stale := [key for key, value in labels.items() if facts.labels.get(key) != value]:
        raise UsageError(
            f"{name} was not built from this checkout",
            why=f"label {stale[0]} says {facts.labels.get(stale[0])!r}, this checkout {labels[stale[0]]!r}",
            do=f"run: nox -s build-cpu -- --base {base}, or name the checkout with --checkout",
        )
    return Good(
        client=client,
        shop=shop,
        plan=plan,
        tree=tree,
        wheel=wheel,
        expected=expected,
        policy=policy_of(plan, tree.skipped),
        facts=facts,
        blobs=read_blobs(client, facts.digest, shop.cache.root / "faults"),
        scratch=scratch,
    )


def _labels(plan: BuildPlan, tree: PatchedTree, version: str, stated: Mapping[str, str], epoch: int) -> dict[str, str]:
    """Return the labels that a build of this checkout sets.

    Three say which build it was and not what it is; they are taken from the good image, where no record is at hand.
    """
    values: dict[str, Any] = {
        "revision": int(stated.get(REVISION_LABEL, "0")),
        "inputs_sha256": stated.get(INPUTS_LABEL, ""),
        "source_revision": stated.get(SOURCE_LABEL, ""),
    }
    return make_labels(
        lock=plan.lock,
        platform=plan.platform.name,
        wheel_version=version,
        applied=tree.applied,
        skipped=tree.skipped,
        series_sha256=tree.series_sha256,
        epoch=epoch,
        **values,
    )
