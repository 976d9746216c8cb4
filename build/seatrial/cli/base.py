"""The word `lock-base`."""

from __future__ import annotations

import argparse

from seatrial.cli.verb import Context, Verb
from seatrial.flow.shop import open_shop
from seatrial.stages.lock_base import lock_base, write_lock


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", metavar="VERSION", help="upstream release, like 0.28.0")
    parser.add_argument(
        "--commit", metavar="SHA", help="full commit of the tag, where the git repository is out of reach"
    )


def _run(context: Context, options: argparse.Namespace) -> int:
    shop = open_shop(context.project, context.console)
    lock = lock_base(
        options.version, commit=options.commit, index=shop.index, cache=shop.cache, console=context.console
    )
    path = context.project.bases / f"{lock.version}.toml"
    write_lock(lock, path)
    context.console.line(f"{path.relative_to(context.project.root)}: {lock.source.tag} = {lock.source.commit}")
    for artifact in lock.artifacts:
        context.console.detail(f"{artifact.role.value}: {artifact.file} ({artifact.built_by})")
    for comparison in lock.comparisons:
        context.console.detail(
            f"{comparison.left.value} against {comparison.right.value}: {comparison.identical} of {comparison.shared}"
            f" shared Python files are identical" + "".join(f"; differs: {name}" for name in comparison.differing)
        )
    context.console.result(lock.model_dump(mode="json", by_alias=True))
    return 0


LOCK_BASE = Verb(
    "lock-base",
    "pin an upstream release in build/bases/",
    "Read an upstream release from the index and from git and pin it: commit, artifacts with SHA-256, torch releases.",
    _arguments,
    _run,
)
