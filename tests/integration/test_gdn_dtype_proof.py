"""The proof of gdn-dtype in an image: red over the layer in the downstream file's shape, green once it is repaired."""

from __future__ import annotations

import shutil
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from seatrial.cli.main import main
from tests.inimage import SECONDS, lay_runner, run_in

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
PROOF = ROOT / "patches" / "gdn-dtype" / "test_gdn_dtype.py"
FIXTURE = ROOT / "tests" / "downstream" / "qwen3_next_xpu.py"
MODEL = "vllm/model_executor/models/qwen3_next.py"
IMAGE = "vllm:0.15.1-cpu"
DIES, CASES = 13, 28
"""Of seven ways, without and with fused calls: all in bfloat16 but the generic large batch; of all cases."""


def test_the_proof_is_red_before_the_repair_and_green_after(tmp_path: Path) -> None:
    try:
        client = docker.from_env(timeout=SECONDS)
        client.images.get(IMAGE)
    except ImageNotFound:
        pytest.skip(f"not run: there is no {IMAGE}; build it: nox -s build-cpu -- --base 0.15.1")
    except DockerException as error:
        pytest.skip(f"not run: no engine answers here ({error})")
    runner = lay_runner(tmp_path / "runner")
    model = tmp_path / "tree" / MODEL
    model.parent.mkdir(parents=True)
    (tmp_path / "tree" / "vllm" / "__init__.py").touch()
    shutil.copy(FIXTURE, model)
    red = run_in(client, IMAGE, PROOF, runner, over={}, beside={f"tests/{MODEL}": model})
    assert (red.failed, red.passed) == (DIES, CASES - DIES), red.text
    assert "dt_bias dtype must match core_attn_out dtype" in red.text
    assert main(["repair", "gdn-dtype", str(tmp_path / "tree")]) == 0
    green = run_in(client, IMAGE, PROOF, runner, over={}, beside={f"tests/{MODEL}": model})
    assert (green.failed, green.passed) == (0, CASES), green.text
    client.close()
