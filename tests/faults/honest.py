"""Whether the cheap reading is honest: on a sample, the whole one has to give the same files and the same report."""

from __future__ import annotations

from seatrial.model.report import Report
from seatrial.ports.engine import connect
from seatrial.ports.images import DockerImages
from seatrial.stages.inspect import inspect_image
from tests.faults.cheap import CheapImages, Known, copied, differences, lay_over
from tests.faults.derive import derived
from tests.faults.good import WANTS, Good, read_whole
from tests.faults.judge import expectation, inspected, quiet
from tests.faults.table import FAULTS

SAMPLE = ("loader-path-other-folder", "unpatched-cpu", "no-import-distribution", "stop-signal", "root-interpreter")
"""A file moved, one replaced, a whole distribution gone, a setting alone, links and folders with modes."""


def compare(name: str, good: Good) -> list[str]:
    """Return where the two readings of one faulty image differ, one sentence each."""
    fault = next(one for one in FAULTS if one.name == name)
    assert fault.seed is not None
    layer = good.layer()
    fault.seed(layer)
    client = connect()
    try:
        engine = DockerImages(client)
        with derived(client, good.blobs, layer, name) as (image, data):
            whole = read_whole(engine, image)
            cheap = lay_over(good.root, data, WANTS) if data else copied(good.root)
            unlike = [f"{name}: {path}" for path in differences(cheap, whole.root)[:5]]
            told = CheapImages(engine, image, whole, b"", Known(), runs=True)
            full = inspect_image(image, expectation(good, layer), told, quiet())
            seen = inspected(good, engine, image, layer, data, full=False, runs=True)
        return unlike + [f"{name}: {line}" for line in _unlike(full, seen)]
    finally:
        client.close()


def _unlike(whole: Report, cheap: Report) -> list[str]:
    pairs = zip(whole.cases, cheap.cases, strict=True)
    return [
        f"{left.name} says {left.outcome.value} {left.reason!r} of the whole image, {right.outcome.value} "
        f"{right.reason!r} of the layer"
        for left, right in pairs
        if (left.name, left.outcome, left.reason) != (right.name, right.outcome, right.reason)
    ]
