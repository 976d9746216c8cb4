"""The proof of each fix, run where it counts: inside the image that was named, green with the fix and red without."""

from __future__ import annotations

import importlib.util
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
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

pytestmark = [pytest.mark.engine, pytest.mark.index]

ROOT = Path(__file__).parents[2]
PROJECT = Project(ROOT)
SITE = "/opt/vllm/lib/python3.11/site-packages"
RUNNER = ("pytest", "_pytest", "py", "pluggy", "iniconfig")
"""What the image lacks of a test runner; all of it is plain Python."""
SECONDS = 600


@dataclass(frozen=True)
class Outcome:
    """How an inner test run ended."""

    passed: int
    failed: int
    text: str


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
    """Lay out a test runner for the image's interpreter."""
    folder = tmp_path / "runner"
    folder.mkdir()
    for name in RUNNER:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        if spec.submodule_search_locations is None:
            shutil.copy(spec.origin, folder)
        else:
            shutil.copytree(Path(spec.origin).parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run_in(client: docker.DockerClient, image: str, proof: Path, runner: Path, over: dict[str, Path]) -> Outcome:
    """Run a proof in an image with no network; `over` maps files of site-packages to what takes their place."""
    binds = {str(runner): {"bind": "/mnt/runner", "mode": "ro"}, str(proof.parent): {"bind": "/mnt/fix", "mode": "ro"}}
    binds |= {str(path): {"bind": f"{SITE}/{name}", "mode": "ro"} for name, path in over.items()}
    container = client.containers.create(
        image,
        entrypoint=["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"/mnt/fix/{proof.name}"],
        environment={"PYTHONPATH": "/mnt/runner", "PYTHONDONTWRITEBYTECODE": "1"},
        network_mode="none",
        volumes=binds,
        working_dir="/tmp",
    )
    try:
        container.start()
        container.wait(timeout=SECONDS)
        text = container.logs().decode(errors="replace")
    finally:
        container.remove(force=True)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", text.splitlines()[-1])}
    return Outcome(counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0), text)


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
    green = run_in(engine, image, proof, runner, {})
    assert green.passed > 0 and green.failed == 0, green.text

    shop = open_shop(PROJECT, Console())
    wheel = fetch_artifact(
        PROJECT.base_lock(base), Role.CPU_WHEEL, cache=shop.cache, index=shop.index, console=shop.console
    )
    patch = fix.patch(base)
    assert patch is not None
    over = {}
    with zipfile.ZipFile(wheel) as archive:
        for number, name in enumerate(patch.files):
            over[name] = tmp_path / f"{number}.py"
            over[name].write_bytes(archive.read(name))
            over[name].chmod(0o644)
    red = run_in(engine, image, proof, runner, over)
    assert red.failed > 0, red.text
