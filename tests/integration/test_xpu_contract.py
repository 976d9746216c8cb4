"""The fused XPU operator's contract on a CPU: the stand-in itself, the downstream shape, and the layer of 0.15.1.

The inner tests lie in tests/inside and run in an image, which has torch and Hugging Face's layer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from seatrial.cli.main import main
from tests.inimage import SECONDS, Outcome, lay_runner, run_in

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
INSIDE = ROOT / "tests" / "inside"
FIXTURE = ROOT / "tests" / "downstream" / "qwen3_next_xpu.py"
MODEL = "vllm/model_executor/models/qwen3_next.py"
IMAGE = "vllm:0.15.1-cpu"


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    try:
        client = docker.from_env(timeout=SECONDS)
        client.ping()
        client.images.get(IMAGE)
    except ImageNotFound:
        pytest.skip(f"not run: there is no {IMAGE}; build it: nox -s build-cpu -- --base 0.15.1")
    except DockerException as error:
        pytest.skip(f"not run: no engine answers here ({error})")
    yield client
    client.close()


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """Copy the inner tests to where files can be laid beside them."""
    return Path(shutil.copytree(INSIDE, tmp_path / "inside", ignore=shutil.ignore_patterns("__pycache__")))


def go(engine: docker.DockerClient, tmp_path: Path, proof: Path) -> Outcome:
    return run_in(engine, IMAGE, proof, lay_runner(tmp_path / "runner"), over={})


def test_the_stand_in_is_the_operator(engine: docker.DockerClient, inside: Path, tmp_path: Path) -> None:
    outcome = go(engine, tmp_path, inside / "kernel.py")
    assert outcome.passed > 60 and outcome.failed == outcome.skipped == 0, outcome.text


def test_the_downstream_shape_dies_and_the_repair_cures_it(
    engine: docker.DockerClient, inside: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    model = tree / MODEL
    model.parent.mkdir(parents=True)
    (tree / "vllm" / "__init__.py").touch()
    shutil.copy(FIXTURE, model)
    assert main(["repair", "gdn-dtype", str(tree)]) == 0
    shutil.copy(FIXTURE, inside / "before.py")
    shutil.copy(model, inside / "after.py")
    outcome = go(engine, tmp_path, inside / "downstream.py")
    assert outcome.passed > 40 and outcome.failed == outcome.skipped == 0, outcome.text


def test_the_layer_of_0_15_1_keeps_the_contract(engine: docker.DockerClient, inside: Path, tmp_path: Path) -> None:
    outcome = go(engine, tmp_path, inside / "layer.py")
    assert outcome.passed > 20 and outcome.failed == outcome.skipped == 0, outcome.text
