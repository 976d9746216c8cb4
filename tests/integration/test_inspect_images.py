"""Inspect against the images that were built here: whole, at their real size, with no false alarm."""

from __future__ import annotations

import io
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound

from seatrial.flow.trial import kept_expectation
from seatrial.ports.console import Console
from seatrial.ports.images import DockerImages
from seatrial.ports.layers import read_layers
from seatrial.ports.rootfs import Wants, read_rootfs
from seatrial.stages.inspect import CASES, inspect_image

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
IMAGES = ("vllm:0.28.0-cpu", "vllm:0.15.1-cpu")


def built(client: docker.DockerClient, name: str) -> str:
    try:
        return str(client.images.get(name).id)
    except ImageNotFound:
        pytest.skip(f"not run: {name} was not built here")


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_was_built_here_passes_every_check(client: docker.DockerClient, name: str) -> None:
    digest = built(client, name)
    expected = kept_expectation(ROOT / "out", digest)
    if expected is None:
        pytest.skip(f"not run: the build of {name} left no expected.json")
    report = inspect_image(digest, expected, DockerImages(client), Console(out=io.StringIO(), ci=False))
    assert {case.name: case.measured.get("problems", case.reason) for case in report.bad} == {}
    assert tuple(case.name for case in report.cases) == CASES
    measured = {case.name: case.measured for case in report.cases}
    assert measured["symbols"]["without_symbols"] == 0
    assert measured["symbols"]["demangled"]
    assert measured["symbols"]["symbols"] > 50_000
    assert measured["locked-files"]["compared"] == measured["distributions"]["locked"]
    assert measured["extensions"]["operators_compared"]
    assert len(measured["operators-called"]["called"]) > 10
    assert measured["shell"]["shell"] == "/bin/bash"


def test_the_layers_laid_over_each_other_are_the_exported_file_system(client: docker.DockerClient) -> None:
    digest = built(client, IMAGES[0])
    images = DockerImages(client)
    with images.archive(digest) as chunks:
        layers = read_layers(chunks, lambda path, size: False)
    seen: dict[str, int] = {}
    for layer in layers:
        for path in layer.removed:
            for below in [one for one in seen if one == path or one.startswith(f"{path}/")]:
                del seen[below]
        seen |= layer.files
    with images.export(digest) as chunks:
        root = read_rootfs(chunks, Wants(keep=lambda path, size: False, digest=lambda path: False))
    made_by_the_engine = ("/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/mtab", "/dev/console")
    exported = {path for path, entry in root.entries.items() if entry.kind != "dir"}
    assert exported.symmetric_difference(seen) <= set(made_by_the_engine)
