"""The gate's own measure: seeded faults that it refuses, and good images that it does not."""

from __future__ import annotations

import json
import sys

from seatrial.model.errors import BuildError
from seatrial.ports.process import run
from tests.bench.frame import Bed, Bench, Limit, Numbers

SECONDS = 3600.0


def seeded_faults(bed: Bed) -> Numbers:
    """Run what CI runs of the seeded faults, on the image of base 0.28.0 that this checkout built."""
    out = bed.scratch / "faults.json"
    argv = [sys.executable, "-m", "tests.faults.run", "--ci", "--out", str(out), "--scratch", str(bed.scratch)]
    ran = run(argv, timeout=SECONDS, cwd=bed.root, check=False)
    if not out.is_file():
        raise BuildError("the faults could not be run", why=(ran.text or ran.stderr.decode()).strip()[-300:])
    result = json.loads(out.read_text(encoding="utf-8"))
    numbers = result["score"]
    return {
        "seeded": numbers["seeded"],
        "caught": numbers["caught"],
        "open": numbers["open"],
        "caught_over_seeded": numbers["caught"] / numbers["seeded"],
        "clean": numbers["clean"],
        "false_alarms": numbers["false_alarms"],
        "false_alarms_over_clean": numbers["false_alarms"] / numbers["clean"],
        "run_s": result["seconds"],
    }


BENCHES: tuple[Bench, ...] = (
    Bench(
        "faults",
        "seeded faults that the gate refuses, and false alarms on good images",
        seeded_faults,
        (
            Limit("seeded", "at_least", 60),
            Limit("caught_over_seeded", "at_least", 0.97),
            Limit("clean", "at_least", 20),
            Limit("false_alarms", "at_most", 0),
        ),
    ),
)
