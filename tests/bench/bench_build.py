"""Benches of the main job: a second build, the detectors, the smoke profile, the image's size.

They build base 0.28.0 where it was not built before; that first build is not part of what is timed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from seatrial.model.base import Role
from seatrial.model.errors import BuildError
from seatrial.ports.process import run
from seatrial.stages.fetch import fetch_artifact
from seatrial.stages.lock_base import load_base
from seatrial.stages.record import read_report
from tests.bench.frame import Bed, Bench, Lap, Limit, Numbers, lap

BASE, PLATFORM = "0.28.0", "cpu"
SECONDS = 3600.0


def _seatrial(bed: Bed, *words: str) -> Lap:
    with lap() as taken:
        run([sys.executable, "-m", "seatrial", *words], timeout=SECONDS, cwd=bed.root)
    return taken


def _built(bed: Bed) -> tuple[dict[str, Any], Path]:
    """Return the newest record of the line that is benched, and the folder of its build."""
    out = bed.root / "out" / f"{BASE}-{PLATFORM}"
    _seatrial(bed, "build", PLATFORM, "--base", BASE)
    records = sorted(out.glob("r*.json"), key=lambda path: int(path.stem[1:]))
    if not records:
        raise BuildError("the build left no record", do="run: nox -s build-cpu -- --base 0.28.0")
    return json.loads(records[-1].read_text(encoding="utf-8")), out


def second_build(bed: Bed) -> Numbers:
    """Time a build with nothing changed, beside the start of the same program that does nothing."""
    _built(bed)
    again = _seatrial(bed, "build", PLATFORM, "--base", BASE)
    nothing = _seatrial(bed, "--version")
    return {"again_s": again.wall, "start_s": nothing.wall, "again_over_start": again.wall / nothing.wall}


def check_tree(bed: Bed) -> Numbers:
    """Time every detector over the whole source archive, beside reading its members once."""
    lock = load_base(bed.root / "build" / "bases", BASE)
    sdist = fetch_artifact(lock, Role.SDIST, cache=bed.cache, index=bed.index, console=bed.console)
    with lap() as checked:
        run([sys.executable, "-m", "seatrial", "check", str(sdist)], timeout=SECONDS, cwd=bed.root, check=False)
    with lap() as listed:
        run([sys.executable, "-c", f"import tarfile; tarfile.open({str(sdist)!r}).getmembers()"], timeout=SECONDS)
    return {"check_s": checked.wall, "list_s": listed.wall, "check_over_list": checked.wall / listed.wall}


def smoke_basic(bed: Bed) -> Numbers:
    """Tell how much of the basic profile is servers starting, from the report of the build's own run."""
    record, out = _built(bed)
    digest = record["image"]["digest"].removeprefix("sha256:")[:12]
    report = read_report(out / "reports" / digest / "smoke-basic.json").report
    starts = sum(case.seconds for case in report.cases if case.name.endswith(("/ready", "/serves-or-refuses")))
    return {"profile_s": report.seconds, "starts_s": starts, "starts_of_profile": starts / report.seconds}


def image_size(bed: Bed) -> Numbers:
    """Tell what the image holds beyond the files of its installed wheels, from the build's own inspection."""
    record, out = _built(bed)
    digest = record["image"]["digest"].removeprefix("sha256:")[:12]
    report = read_report(out / "reports" / digest / "inspect.json").report
    measured = next(case.measured for case in report.cases if case.name == "size")
    return {
        "over_wheels_mb": float(measured["over_wheels_mb"]),
        "wheels_mb": float(measured["wheels_mb"]),
        "image_over_wheels": float(measured["total_mb"]) / float(measured["wheels_mb"]),
    }


BENCHES: tuple[Bench, ...] = (
    Bench(
        "build.second",
        "a build with nothing changed, beside the start of the program",
        second_build,
        (Limit("again_s", "at_most", 5.0),),
    ),
    Bench(
        "build.check",
        "every detector over the 0.28.0 source archive, beside listing the archive",
        check_tree,
        (Limit("check_s", "at_most", 3.0),),
    ),
    Bench(
        "build.smoke-basic",
        "the basic smoke profile on the CPU, beside the starts of its servers",
        smoke_basic,
        (Limit("profile_s", "at_most", 180.0), Limit("starts_of_profile", "at_least", 0.5)),
    ),
    Bench(
        "build.image-size",
        "the image of base 0.28.0, beside the wheels that are installed in it",
        image_size,
        (Limit("over_wheels_mb", "at_most", 250.0),),
    ),
)
