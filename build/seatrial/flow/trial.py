"""The sea trial: inspect and smoke one image, and keep both reports where the gate reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker

from seatrial.flow.image import LAYERS
from seatrial.flow.materials import patched_files, restored_files
from seatrial.flow.plan import BuildPlan
from seatrial.flow.shop import Shop
from seatrial.model.errors import IntegrityError, LockError
from seatrial.model.expectation import Allowance, Expectation
from seatrial.model.operators import OperatorList
from seatrial.model.record import RecordedWheel
from seatrial.model.report import Report
from seatrial.model.requirements import LeftOut
from seatrial.model.series import PatchedTree
from seatrial.model.values import canonical_json, parse_json
from seatrial.ports.files import write_atomic
from seatrial.ports.images import DockerImages
from seatrial.ports.layers import LayerSummary, kept_summary
from seatrial.ports.receipts import Receipts
from seatrial.stages.inspect import inspect_image
from seatrial.stages.record import ReportFile, read_report
from seatrial.stages.smoke import run_smoke
from seatrial.stages.smoke_page import report_page

ENTRYPOINT = ("vllm", "serve")
EXPECTED = "expected.json"
"""What an image was compared with; it stands beside its reports."""


def expectation_of(
    plan: BuildPlan,
    tree: PatchedTree,
    wheel: RecordedWheel,
    *,
    installed: Mapping[str, str],
    labels: Mapping[str, str],
    left_out: Sequence[LeftOut],
    records: Mapping[str, str],
    operators: OperatorList | None,
) -> Expectation:
    """Return what the image has to be, from the locks and the patched tree alone.

    Args:
        installed: distributions of the requirement locks, normalised name to version.
        left_out: requirements that the platform's image does without, each with its reason.
        records: distribution to the digest over its wheel's RECORD.
        operators: what the base's extensions register; without it the operators are not compared, which is refused.
    """
    row = plan.platform
    return Expectation(
        schema="seatrial.expectation/1",
        platform=row.name,
        machine=row.machine,
        device=row.device,
        base=plan.lock.version,
        commit=plan.lock.source.commit,
        vllm_version=wheel.version,
        distributions={**installed, "vllm": wheel.version},
        records=dict(records),
        patched=patched_files(tree, restored_files(plan, tree)),
        removed=tree.removed,
        labels=dict(labels),
        environment={setting.name: setting.value for setting in row.environment},
        entrypoint=ENTRYPOINT,
        over_wheels_mb=row.over_wheels_mb,
        operators=operators.operators if operators else {},
        allowances=(
            *row.allowances,
            *(operators.allowances if operators else ()),
            *(Allowance(check="requirements", pattern=f"*: {entry.name}", why=entry.why) for entry in left_out),
        ),
    )


def inspect_report(
    shop: Shop,
    plan: BuildPlan,
    digest: str,
    expected: Expectation,
    *,
    client: docker.DockerClient,
    receipts: Receipts,
    code: str,
) -> ReportFile:
    """Inspect the image, or return the report of an earlier inspection of the same digest by the same code."""
    inputs = {"digest": digest, "expected": expected.model_dump(mode="json"), "code": code}
    kept = _kept(receipts, "inspect", inputs)
    if kept is not None:
        shop.console.detail("unchanged: the report of this digest stands")
        return kept
    report = inspect_image(digest, expected, DockerImages(client), shop.console, known_layers(shop, digest))
    text = canonical_json(expected.model_dump(mode="json", by_alias=True)) + b"\n"
    write_atomic(_folder(plan, digest) / EXPECTED, text)
    return _keep(plan, receipts, "inspect", inputs, report)


def smoke_report(
    shop: Shop, plan: BuildPlan, digest: str, profile: str, *, receipts: Receipts, code: str
) -> ReportFile:
    """Smoke the image, or return the report of an earlier run on the same digest by the same tests."""
    inputs = {"digest": digest, "profile": profile, "tests": code}
    kept = _kept(receipts, f"smoke-{profile}", inputs)
    if kept is not None:
        shop.console.detail(f"unchanged: the {profile} report of this digest stands")
        return kept
    report = run_smoke(
        shop.project.root,
        digest,
        platform=plan.platform.name,
        base=plan.lock.version,
        profile=profile,
        console=shop.console,
    )
    return _keep(plan, receipts, f"smoke-{profile}", inputs, report)


def known_layers(shop: Shop, digest: str) -> LayerSummary | None:
    """Return what was read of an image's layers when it was built here, None for another image."""
    return kept_summary(shop.cache.root / LAYERS, digest)


def kept_expectation(out: Path, digest: str) -> Expectation | None:
    """Return what a build of this checkout expected of an image, None when it was not built here.

    Args:
        out: the checkout's folder `out`, of all builds.

    Raises:
        LockError: the file was changed so that it cannot be read.
    """
    for path in sorted(out.glob(f"*/reports/{digest.removeprefix('sha256:')[:12]}/{EXPECTED}")):
        return parse_json(Expectation, path.read_bytes(), str(path))
    return None


def _folder(plan: BuildPlan, digest: str) -> Path:
    return plan.out / "reports" / digest.removeprefix("sha256:")[:12]


def _kept(receipts: Receipts, stage: str, inputs: Mapping[str, Any]) -> ReportFile | None:
    known = receipts.find(stage, inputs, lost=_lost)
    return None if known is None else read_report(Path(known["path"]))


def _lost(outputs: dict[str, Any]) -> str:
    try:
        found = read_report(Path(outputs["path"]))
    except (IntegrityError, LockError) as error:
        return error.what
    return "" if found.sha256 == outputs["sha256"] else "the report was changed after it was written"


def _keep(plan: BuildPlan, receipts: Receipts, stage: str, inputs: Mapping[str, Any], report: Report) -> ReportFile:
    """Write a report and its page; only one without objections leaves a receipt, so that a bad one is made again."""
    path = _folder(plan, report.subject) / f"{stage}.json"
    write_atomic(path, canonical_json(report.model_dump(mode="json", by_alias=True)) + b"\n")
    write_atomic(path.with_suffix(".html"), report_page(report).encode())
    file = read_report(path)
    if not report.bad:
        receipts.leave(stage, inputs, {"path": str(path), "sha256": file.sha256})
    return file
