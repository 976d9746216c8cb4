"""Overlay mode: what patching a wheel costs, beside reading it and beside upstream's precompiled mode."""

from __future__ import annotations

import shutil
import statistics
import sys
import tarfile
import zipfile
from pathlib import Path

from seatrial.model.errors import BuildError
from seatrial.model.wheel import wheel_version
from seatrial.ports.process import run
from seatrial.stages.wheel import Overlay, OverlayWheel, overlay
from tests.bench.frame import Bed, Bench, Lap, Limit, Numbers, lap

OFFICIAL = (
    "vllm-0.15.1-cp38-abi3-manylinux_2_31_x86_64.whl",
    "d3810299d331fc1031c8a2a9886f1f0e0cc2f14ddad284d337174324b1c83e92",
)
PAIR_VERSION = "0.16.0"
PAIR_WHEEL = (
    "vllm-0.16.0-cp38-abi3-manylinux_2_31_x86_64.whl",
    "f066b2a2f8597a4a3ada8fbbfd122b59086864b2260ca42dc81bf9fb57af0c42",
)
PAIR_SDIST = ("vllm-0.16.0.tar.gz", "1f684bb31fbef59d862e2fe666e23a41f1d39d93f86215ce1ce1db89a8f5665b")
BUILD_REQUIREMENTS = (
    "torch==2.13.0",
    "setuptools>=77.0.3,<81",
    "setuptools-scm>=8",
    "grpcio-tools==1.78.0",
    "cmake>=3.26.1",
    "ninja",
    "packaging>=24.2",
    "wheel",
    "jinja2",
)
"""What upstream's own build asks for, torch apart: any release does, nothing is compiled against it."""

PATCHED = "vllm/config/model.py"
MARK = b"\n# patched\n"
ROUNDS = 5


def overlay_beside_reading(bed: Bed) -> Numbers:
    """Patch the official CUDA wheel of 0.15.1; reading it is timed beside, both from the page cache."""
    wheel = bed.fetch("vllm", *OFFICIAL)
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read(PATCHED)
    _patch(bed.scratch / "tree" / PATCHED, source)
    reading = [_read(wheel) for _ in range(ROUNDS)]
    taken = [_overlay(wheel, bed.scratch, "0.15.1")[0] for _ in range(ROUNDS)]
    ours, theirs = _median(taken), _median(reading)
    return {
        "overlay_wall_s": ours.wall,
        "overlay_cpu_s": ours.cpu,
        "reading_wall_s": theirs.wall,
        "beyond_reading_s": max(0.0, ours.wall - theirs.wall),
        "wheel_mb": wheel.stat().st_size / 1e6,
    }


def overlay_beside_precompiled(bed: Bed) -> Numbers:
    """Bring one changed Python file into a wheel, by overlay and by upstream's precompiled mode, from one wheel."""
    wheel = bed.fetch("vllm", *PAIR_WHEEL)
    sdist = bed.fetch("vllm", *PAIR_SDIST)
    with tarfile.open(sdist) as archive:
        archive.extractall(bed.scratch / "unpacked", filter="data")
    tree = bed.scratch / "unpacked" / f"vllm-{PAIR_VERSION}"
    _patch(tree / PATCHED, (tree / PATCHED).read_bytes())
    _patch(bed.scratch / "tree" / PATCHED, (tree / PATCHED).read_bytes().removesuffix(MARK))
    python = _build_environment(bed.scratch / "venv")
    bed.console.detail("upstream's precompiled mode: a minute or two")
    with lap() as theirs:
        run(
            [str(python), "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", "theirs", str(tree)],
            cwd=bed.scratch,
            env={"VLLM_USE_PRECOMPILED": "1", "VLLM_PRECOMPILED_WHEEL_LOCATION": str(wheel)},
            timeout=1800,
        )
    made = list((bed.scratch / "theirs").glob("*.whl"))
    laps: list[Lap] = []
    for _ in range(ROUNDS):
        taken, mine = _overlay(wheel, bed.scratch, PAIR_VERSION)
        laps.append(taken)
    _same_work(mine.path, made[0])
    ours = _median(laps)
    return {
        "overlay_wall_s": ours.wall,
        "overlay_cpu_s": ours.cpu,
        "precompiled_wall_s": theirs.wall,
        "precompiled_cpu_s": theirs.cpu,
        "ratio": theirs.wall / ours.wall,
        "cpu_ratio": theirs.cpu / ours.cpu,
    }


def _overlay(wheel: Path, scratch: Path, base: str) -> tuple[Lap, OverlayWheel]:
    shutil.rmtree(scratch / "ours", ignore_errors=True)
    request = Overlay(
        upstream=wheel, tree=scratch / "tree", changed=(PATCHED,), version=wheel_version(base, "cuda-sm80", 1)
    )
    with lap() as taken:
        made = overlay(request, scratch / "ours")
    return taken, made


def _patch(path: Path, source: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source + MARK)


def _read(path: Path) -> Lap:
    with lap() as taken, path.open("rb") as stream:
        while stream.read(1 << 20):
            pass
    return taken


def _median(laps: list[Lap]) -> Lap:
    return Lap(statistics.median(each.wall for each in laps), statistics.median(each.cpu for each in laps))


def _build_environment(folder: Path) -> Path:
    run([sys.executable, "-m", "venv", str(folder)], timeout=300)
    python = folder / "bin" / "python"
    run([str(python), "-m", "pip", "install", "-q", *BUILD_REQUIREMENTS], timeout=1800)
    return python


def _same_work(ours: Path, theirs: Path) -> None:
    """Raise BuildError unless both wheels hold the patched file and the same main library."""
    with zipfile.ZipFile(ours) as left, zipfile.ZipFile(theirs) as right:
        for name in (PATCHED, "vllm/_C.abi3.so"):
            if left.getinfo(name).CRC != right.getinfo(name).CRC:
                raise BuildError(f"the two wheels differ in {name}", why="they did not do the same work")
        if not left.read(PATCHED).endswith(MARK):
            raise BuildError("the patch is not in the wheels")


BENCHES = (
    Bench(
        "wheel.overlay",
        "patching the official 509 MB CUDA wheel of 0.15.1 beside reading it",
        overlay_beside_reading,
        (Limit("beyond_reading_s", "at_most", 3.0),),
    ),
    Bench(
        "wheel.overlay_vs_precompiled",
        "one changed file brought into the 508 MB CUDA wheel of 0.16.0: overlay beside upstream's precompiled mode",
        overlay_beside_precompiled,
        (Limit("ratio", "at_least", 20.0), Limit("cpu_ratio", "at_least", 20.0)),
    ),
)
