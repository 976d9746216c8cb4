"""Runs pytest inside an image: what the image lacks of a test runner is laid in, files take the place of its own."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker

TESTS = Path(__file__).parent
SITE = "/opt/vllm/lib/python3.11/site-packages"
RUNNER = ("pytest", "_pytest", "py", "pluggy", "iniconfig")
"""What the image lacks of a test runner; all of it is plain Python."""
SECONDS = 600
BROKEN = ("failed", "error", "errors")


@dataclass(frozen=True)
class Outcome:
    """How an inner test run ended."""

    passed: int
    failed: int
    """Failed or broken."""
    skipped: int
    text: str


def lay_runner(folder: Path) -> Path:
    """Lay out a test runner for the image's interpreter."""
    folder.mkdir()
    for name in RUNNER:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        if spec.submodule_search_locations is None:
            shutil.copy(spec.origin, folder)
        else:
            shutil.copytree(Path(spec.origin).parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run_in(
    client: docker.DockerClient,
    image: str,
    proof: Path,
    runner: Path,
    *,
    over: Mapping[str, Path],
    beside: Mapping[str, Path] | None = None,
    options: Sequence[str] = (),
) -> Outcome:
    """Run a proof in an image with no network.

    `over` maps files of site-packages to what takes their place, `beside` maps names below /mnt to further files and
    folders. The folder of tests is on the path, for the library `xpukernels`.
    """
    binds = {str(runner): {"bind": "/mnt/runner", "mode": "ro"}, str(proof.parent): {"bind": "/mnt/fix", "mode": "ro"}}
    binds |= {str(TESTS / "xpukernels"): {"bind": "/mnt/tests/xpukernels", "mode": "ro"}}
    binds |= {str(path): {"bind": f"{SITE}/{name}", "mode": "ro"} for name, path in over.items()}
    binds |= {str(path): {"bind": f"/mnt/{name}", "mode": "ro"} for name, path in (beside or {}).items()}
    container = client.containers.create(
        image,
        entrypoint=["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, f"/mnt/fix/{proof.name}"],
        environment={"PYTHONPATH": "/mnt/runner:/mnt/tests", "PYTHONDONTWRITEBYTECODE": "1"},
        network_mode="none",
        volumes=binds,
        working_dir="/tmp",
        shm_size="1g",
    )
    try:
        container.start()
        container.wait(timeout=SECONDS)
        text = container.logs().decode(errors="replace")
    finally:
        container.remove(force=True)
    # Python may warn behind pytest's summary while it ends, so that is not always the last line.
    ends = [line for line in text.splitlines() if re.search(r" in \d+\.\d+s", line)]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", ends[-1])} if ends else {}
    return Outcome(counts.get("passed", 0), sum(counts.get(word, 0) for word in BROKEN), counts.get("skipped", 0), text)
