"""Run the gate's own code over a broken image, and say what it said."""

from __future__ import annotations

import io
import time
from dataclasses import replace

from seatrial.model.errors import RefusedError, SeatrialError
from seatrial.model.expectation import Expectation
from seatrial.model.gate import Decision
from seatrial.model.report import Report
from seatrial.ports.console import Console
from seatrial.ports.engine import connect
from seatrial.ports.images import DockerImages
from seatrial.stages.inspect import inspect_image
from seatrial.stages.naming import require_allowed
from tests.faults.cheap import CheapImages
from tests.faults.derive import Layer, derived
from tests.faults.good import Good
from tests.faults.model import Fault, Judged, Outcome, judge

RUNS = ("extensions", "operators-called", "shell")
"""The checks that start a process."""


def quiet() -> Console:
    """Return a console that nobody reads."""
    return Console(out=io.StringIO(), ci=False)


def try_fault(fault: Fault, good: Good, *, full: bool) -> Outcome:
    """Seed a fault, have it judged, and say whether it was caught; a fault that cannot be seeded is not."""
    begun = time.monotonic()
    try:
        judged = judge_image(fault, good, full=full) if fault.judge is None else fault.judge(good)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return Outcome(fault.name, False, (), "", round(time.monotonic() - begun, 1), error=why)
    outcome = judge(fault, judged, time.monotonic() - begun)
    return replace(outcome, said=outcome.said.replace(str(good.scratch), "scratch"))


def judge_image(fault: Fault, good: Good, *, full: bool) -> Judged:
    """Inspect a derived image and ask the gate about it."""
    assert fault.seed is not None
    layer = good.layer()
    fault.seed(layer)
    client = connect()
    try:
        with derived(client, good.blobs, layer, fault.name) as (image, data):
            report = inspected(good, DockerImages(client), image, layer, data, full=full, runs=fault.check in RUNS)
            return judged_by(good.decide(image, report), good)
    except SeatrialError as error:
        # Inspect itself ends with one line where an image cannot be opened; the build ends with it too.
        return Judged((error.label,), (f"{error.what}: {error.why}",))
    finally:
        client.close()


def inspected(
    good: Good, engine: DockerImages, image: str, layer: Layer, data: bytes, *, full: bool, runs: bool
) -> Report:
    """Return the report of the shipped inspection.

    Args:
        full: read the whole image, as a build does.
        runs: start processes in this image, and do not repeat what they said in the good one.
    """
    known = CheapImages(engine, good.digest, good.reading, data, good.known, runs)
    return inspect_image(image, expectation(good, layer), engine if full else known, quiet())


def expectation(good: Good, layer: Layer) -> Expectation:
    """Return what the build expects: the good image, with wheels and files that came so from their makers."""
    patched = {**good.expected.patched, **layer.meant}
    records = {**good.expected.records, **layer.relocked()}
    return good.expected.model_copy(update={"patched": patched, "records": records})


def judged_by(decision: Decision, good: Good) -> Judged:
    """Return the gate's answer, after the naming stage was seen to act on it."""
    refused = False
    try:
        require_allowed(decision, good.plan.line, good.policy, quiet())
    except RefusedError:
        refused = True
    assert refused is not decision.allowed, "the naming stage does not do what the gate says"
    told = [refusal for refusal in decision.refusals if refusal.case] or list(decision.refusals)
    return Judged(
        tuple(refusal.case or refusal.cause.value for refusal in told),
        tuple(refusal.sentence for refusal in told),
        decision.subject,
    )


def cut_to(good: Good, group: str, cases: tuple[str, ...]) -> Good:
    """Return the good artifacts with a gate that wants inspect and one group of the basic profile alone."""
    needs = tuple(
        need
        if need.kind == "inspect"
        else need.model_copy(
            update={
                "cases": tuple(case for case in need.cases if case in cases),
                "not_supported": {case: why for case, why in need.not_supported.items() if case in cases},
            }
        )
        for need in good.policy.requirements
    )
    assert any(case.startswith(f"{group}/") for need in needs for case in need.cases), group
    return replace(good, policy=good.policy.model_copy(update={"requirements": needs}))
