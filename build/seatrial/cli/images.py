"""The words about what is in images: `inspect`, and the lists that it and a build read."""

from __future__ import annotations

import argparse
from pathlib import Path

from seatrial.cli.verb import Context, Verb
from seatrial.flow.operators import lock_operators
from seatrial.flow.project import choose_base
from seatrial.flow.shop import open_shop
from seatrial.flow.trial import kept_expectation, known_layers
from seatrial.model.errors import FindingsError, LockError
from seatrial.model.expectation import Expectation
from seatrial.model.report import Outcome, Report
from seatrial.model.values import parse_json
from seatrial.ports.engine import connect
from seatrial.ports.engine_layout import loaded_layout
from seatrial.ports.files import read_committed
from seatrial.ports.images import DockerImages
from seatrial.ports.pip_config import read_pip_config
from seatrial.ports.wheelfile import open_wheel
from seatrial.stages.fetch import fetch_artifact
from seatrial.stages.inspect import inspect_image, inspect_wheel
from seatrial.stages.lock_requirements import lock_requirements


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject",
        metavar="IMAGE|LAYOUT|WHEEL",
        help="name or digest of an image, an OCI layout (folder or tar), or a wheel file",
    )
    parser.add_argument("--expected", metavar="FILE", help="expected.json of a build, to compare with")


def _inspect(context: Context, options: argparse.Namespace) -> int:
    path = Path(options.subject)
    expected = _given_expectation(options.expected)
    if path.suffix == ".whl":
        report = inspect_wheel(path, expected, context.console)
    elif path.exists():
        client = connect()
        with loaded_layout(client, path) as digest:
            report = inspect_image(digest, expected, DockerImages(client), context.console)
    else:
        images = DockerImages(connect())
        digest = images.facts(options.subject).digest
        if expected is None and (expected := kept_expectation(context.project.root / "out", digest)) is not None:
            context.console.line(
                f"compared with what the build of {expected.base} on {expected.platform} expected of it"
            )
        known = known_layers(open_shop(context.project, context.console), digest)
        report = inspect_image(digest, expected, images, context.console, known)
    context.console.result(report.model_dump(mode="json", by_alias=True))
    wrong = [case for case in report.cases if case.outcome in (Outcome.FAILED, Outcome.ERROR)]
    unknown = [case for case in report.cases if case.outcome is Outcome.NOT_RUN]
    _say(context, report)
    if wrong:
        raise FindingsError(
            f"{options.subject}: {len(wrong)} of {len(report.cases)} checks object",
            why=", ".join(case.name for case in wrong),
            do="see the lines above",
        )
    context.console.line(
        f"{options.subject}: nothing found by {len(report.cases) - len(unknown)} checks"
        + (f"; {len(unknown)} need something to compare with and were not run" if unknown else "")
    )
    return 0


def _given_expectation(path: str | None) -> Expectation | None:
    if path is None:
        return None
    return parse_json(Expectation, read_committed(Path(path), path, do="correct the path"), path)


def _say(context: Context, report: Report) -> None:
    for case in report.cases:
        context.console.line(f"{case.outcome.value:<13} {case.name}" + (f": {case.reason}" if case.reason else ""))


def _lock_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("platform", metavar="PLATFORM", help="row of images/platforms.toml")
    parser.add_argument("--base", metavar="V", help="upstream release; the platform's default when left out")


def _lock(context: Context, options: argparse.Namespace) -> int:
    shop = open_shop(context.project, context.console)
    row = context.project.platform_table().row(options.platform)
    lock = context.project.base_lock(choose_base(row, options.base))
    if row.artifact is None:
        raise LockError(f"platform {row.name} names no upstream wheel", do="add artifact to its row")
    wheel = fetch_artifact(lock, row.artifact, cache=shop.cache, index=shop.index, console=context.console)
    with open_wheel(wheel) as opened:
        metadata = opened.metadata
    written = lock_requirements(
        metadata,
        lock.version,
        row.name,
        lock.torch_for(row.family),
        locks=context.project.images / "locks",
        config=read_pip_config(),
        console=context.console,
    )
    for path in (written.rest, written.torch_index, written.torch_cpu):
        if path is not None:
            context.console.line(str(path.relative_to(context.project.root)))
    return 0


def _operators_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("platform", metavar="PLATFORM", help="row of images/platforms.toml")
    parser.add_argument("--base", metavar="V", help="upstream release; the platform's default when left out")
    parser.add_argument("--image", metavar="IMAGE", required=True, help="image that holds the base's extensions")


def _operators(context: Context, options: argparse.Namespace) -> int:
    shop = open_shop(context.project, context.console)
    path = lock_operators(shop, options.platform, options.base, options.image, DockerImages(connect()))
    context.console.line(str(path.relative_to(context.project.root)))
    return 0


INSPECT = Verb(
    "inspect",
    "look into a finished image or wheel",
    "Run every check that needs no server over an image of the engine or a wheel file; works on any vLLM image.",
    _inspect_arguments,
    _inspect,
)
LOCK_OPERATORS = Verb(
    "lock-operators",
    "write down which operators a base's extensions register",
    "Load the extensions of upstream's wheel inside an image and write the list that inspect compares with.",
    _operators_arguments,
    _operators,
)
LOCK_REQUIREMENTS = Verb(
    "lock-requirements",
    "pin an image's run-time requirements in images/locks/",
    "Resolve what an image of a base needs at run time and write it down with hashes.",
    _lock_arguments,
    _lock,
)
