"""The proof of each fix, run where it counts: inside the image that was named, green with the fix and red without."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from seatrial.flow.project import Project
from seatrial.flow.shop import open_shop
from seatrial.model.base import Role
from seatrial.model.series import LoadedFix
from seatrial.ports.console import Console
from seatrial.stages.fetch import fetch_artifact
from seatrial.stages.fix_files import load_series
from tests.inimage import SECONDS, lay_runner, run_in

pytestmark = [pytest.mark.engine, pytest.mark.index]

ROOT = Path(__file__).parents[2]
PROJECT = Project(ROOT)
SKIPPED = {"gdn-state-dtype": 24}
"""Cases that a proof leaves out in our images: Qwen3.5 asks for torchvision, which they do not hold."""


def proofs() -> list[tuple[LoadedFix, str]]:
    """Return every fix with a base whose CPU image can run its proof."""
    row = PROJECT.platform_table().row("cpu")
    series = load_series(PROJECT.patches)
    return [(fix, base) for fix in series.ordered() if fix.suits(row) for base in row.bases if fix.patch(base)]


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    try:
        client = docker.from_env(timeout=SECONDS)
        client.ping()
    except DockerException as error:
        pytest.skip(f"not run: no engine answers here ({error})")
    yield client
    client.close()


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    return lay_runner(tmp_path / "runner")


@pytest.mark.parametrize(("fix", "base"), proofs(), ids=lambda value: getattr(value, "id", value))
def test_a_proof_is_green_in_the_image_and_red_over_the_pristine_files(
    fix: LoadedFix, base: str, engine: docker.DockerClient, runner: Path, tmp_path: Path
) -> None:
    image = f"vllm:{base}-cpu"
    try:
        engine.images.get(image)
    except ImageNotFound:
        pytest.skip(f"not run: there is no {image}; build it: nox -s build-cpu -- --base {base}")
    proof = PROJECT.patches / fix.id / fix.fix.proof
    green = run_in(engine, image, proof, runner, over={})
    assert green.passed > 0 and green.failed == 0 and green.skipped == SKIPPED.get(fix.id, 0), green.text

    shop = open_shop(PROJECT, Console())
    wheel = fetch_artifact(
        PROJECT.base_lock(base), Role.CPU_WHEEL, cache=shop.cache, index=shop.index, console=shop.console
    )
    patch = fix.patch(base)
    assert patch is not None
    over = {}
    with zipfile.ZipFile(wheel) as archive:
        # A file that a fix adds has no pristine form.
        for number, name in enumerate(sorted(set(patch.files) & set(archive.namelist()))):
            over[name] = tmp_path / f"{number}.py"
            over[name].write_bytes(archive.read(name))
            over[name].chmod(0o644)
    red = run_in(engine, image, proof, runner, over=over)
    assert red.failed > 0, red.text
