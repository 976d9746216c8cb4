"""The build, from plan to name: each stage says what it did, or that nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial.flow.image import Ground, lay_ground, made_image, wheel_records
from seatrial.flow.materials import patched_tree, patched_wheel
from seatrial.flow.naming import Tried, name_and_record, revision_for
from seatrial.flow.plan import BuildPlan
from seatrial.flow.shop import Shop
from seatrial.flow.trial import expectation_of, inspect_report, smoke_report
from seatrial.model.errors import RefusedError
from seatrial.model.expectation import Expectation
from seatrial.model.labels import make_labels
from seatrial.model.record import Record, RecordedWheel
from seatrial.model.series import PatchedTree
from seatrial.model.values import digest_of
from seatrial.ports.receipts import Receipts, alone
from seatrial.ports.revision import source_revision
from seatrial.stages.record import Ingredients, ReportFile

ENGINE = tuple(f"build/seatrial/{layer}" for layer in ("model", "ports", "stages", "flow"))
"""The code that makes things; a receipt is void when any of it has changed. Verbs only choose words."""
DECIDES = (*ENGINE, "build/bases", "images", "patches")
"""Paths of the checkout that decide what is in an image; the label with seatrial's revision is about these."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Digests of seatrial's own code; a receipt is void when the code that made its output has changed."""

    engine: str
    smoke: str
    source: str


def build(shop: Shop, plan: BuildPlan) -> Record:
    """Carry a plan out and return the record of the image that was named.

    Raises:
        RefusedError: the gate gives no name; what was seen stands in the reports.
        SeatrialError: any other of the closed list; finished stages keep their receipts.
    """
    with alone(plan.out / "lock", f"build of {plan.line.moving_tag}"):
        return _build(shop, plan, Receipts(plan.out / "receipts", shop.console))


def _build(shop: Shop, plan: BuildPlan, receipts: Receipts) -> Record:
    console = shop.console
    codes = _codes(shop)
    with console.step("fixes"):
        tree = patched_tree(shop, plan, receipts, codes.engine)
        _say_fixes(shop, tree)
    with console.step("ground"):
        ground = lay_ground(shop, plan, receipts, codes.engine)
    inputs_sha256 = _inputs(plan, tree, ground, codes)
    revision = revision_for(plan, ground.client, inputs_sha256)
    with console.step("wheel"):
        wheel_path, wheel = patched_wheel(shop, plan, tree, revision, receipts=receipts, code=codes.engine)
    labels = make_labels(
        lock=plan.lock,
        platform=plan.platform.name,
        revision=revision,
        wheel_version=wheel.version,
        applied=tree.applied,
        skipped=tree.skipped,
        series_sha256=tree.series_sha256,
        inputs_sha256=inputs_sha256,
        source_revision=codes.source,
        epoch=ground.epoch,
    )
    with console.step("image"):
        image = made_image(shop, plan, ground, wheel_path, labels, receipts=receipts, code=codes.engine)
    with console.step("inspect"):
        expected = _expected(shop, plan, tree, ground, wheel_path=wheel_path, wheel=wheel, labels=labels)
        reports = [
            inspect_report(
                shop, plan, image.digest, expected, client=ground.client, receipts=receipts, code=codes.engine
            )
        ]
    for profile in plan.platform.profiles:
        with console.step(f"smoke {profile}"):
            reports.append(smoke_report(shop, plan, image.digest, profile, receipts=receipts, code=codes.smoke))
    for file in reports:
        _say_report(shop, file)
    with console.step("gate"):
        tried = Tried(image.digest, image.size, tuple(reports), tree.skipped)
        ingredients = Ingredients(
            lock=plan.lock,
            fixes=tree.applied,
            skipped=tree.skipped,
            series_sha256=tree.series_sha256,
            requirements_sha256=ground.requirements_sha256,
            inputs_sha256=inputs_sha256,
            wheel=wheel,
            image=image.recorded,
            source_revision=codes.source,
        )
        try:
            return name_and_record(shop, plan, ground.client, revision, tried=tried, ingredients=ingredients)
        except RefusedError:
            console.detail(f"the image has no name; to look into it: docker run {image.digest}; to drop it: docker rmi")
            raise


def _expected(
    shop: Shop,
    plan: BuildPlan,
    tree: PatchedTree,
    ground: Ground,
    *,
    wheel_path: Path,
    wheel: RecordedWheel,
    labels: Mapping[str, str],
) -> Expectation:
    return expectation_of(
        plan,
        tree,
        wheel,
        installed=ground.installed,
        labels=labels,
        left_out=ground.left_out,
        records=wheel_records(shop, ground, wheel_path),
        operators=shop.project.operator_list(plan.lock.version, plan.platform.name),
    )


def _codes(shop: Shop) -> Codes:
    project = shop.project
    root = project.root
    engine = project.code_digest(*(root / name for name in ENGINE))
    whole = project.code_digest(*(root / name for name in DECIDES))
    return Codes(engine, project.code_digest(project.smoke_tests), source_revision(root, DECIDES, whole))


def _inputs(plan: BuildPlan, tree: PatchedTree, ground: Ground, codes: Codes) -> str:
    """Return the digest over everything that decides the image's content, the revision's number left out."""
    return digest_of(
        {
            "base": plan.lock.content_sha256,
            "platform": plan.platform.model_dump(mode="json"),
            "series": tree.series_sha256,
            "tree": tree.commit,
            "skipped": [fix.model_dump(mode="json") for fix in tree.skipped],
            "ground": ground.identity,
            "source": codes.source,
        }
    )


def _say_fixes(shop: Shop, tree: PatchedTree) -> None:
    for fix in tree.applied:
        shop.console.line(f"  {fix.id}: {fix.verdict.value}")
    for skipped in tree.skipped:
        shop.console.line(f"  {skipped.id}: not inside, {skipped.verdict.value} ({skipped.why})")


def _say_report(shop: Shop, file: ReportFile) -> None:
    report = file.report
    counts: dict[str, int] = {}
    for case in report.cases:
        counts[case.outcome.value] = counts.get(case.outcome.value, 0) + 1
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    shop.console.line(f"{report.kind} {report.profile}: {text} ({report.seconds:.0f} s): {file.path}")
