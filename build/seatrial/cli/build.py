"""The words `build` and `setup`."""

from __future__ import annotations

import argparse

from seatrial.cli.verb import Context, Verb
from seatrial.flow.build import build
from seatrial.flow.plan import BuildRequest, make_plan, say_plan
from seatrial.flow.setup import set_up
from seatrial.flow.shop import open_shop


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("platform", metavar="PLATFORM", help="row of images/platforms.toml")
    parser.add_argument("--base", metavar="V", help="upstream release; the platform's default when left out")
    parser.add_argument("--without", action="append", default=[], metavar="FIX", help="leave a fix out: no name")
    parser.add_argument(
        "--base-image",
        choices=("auto", "pull", "bootstrap"),
        default="auto",
        help="where the system comes from: a registry, the distribution's archive, or what can be reached",
    )
    parser.add_argument("--base-image-ref", metavar="NAME@sha256:D", help="the image to pull, by digest")
    parser.add_argument(
        "--push", metavar="REGISTRY/REPO", help="upload by digest, and name it there once the gate allows"
    )
    parser.add_argument("--revision", type=int, metavar="N", help="revision to build; the next free one when left out")
    parser.add_argument("--no-setup", action="store_true", help="install and start nothing on this machine")
    parser.add_argument("--plan", action="store_true", help="print what would happen, and stop")


def _run(context: Context, options: argparse.Namespace) -> int:
    request = BuildRequest(
        platform=options.platform,
        base=options.base,
        without=tuple(options.without),
        base_image=options.base_image,
        base_image_ref=options.base_image_ref,
        push=options.push,
        revision=options.revision,
        setup=not options.no_setup,
    )
    plan = make_plan(context.project, request)
    say_plan(plan, context.console)
    if options.plan:
        return 0
    record = build(open_shop(context.project, context.console), plan)
    context.console.result(record.model_dump(mode="json", by_alias=True))
    return 0


def _setup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-setup", action="store_true", help="install and start nothing: only say what is missing")
    parser.add_argument("--for-tests", action="store_true", help="also the programs that only seatrial's tests need")


def _setup(context: Context, options: argparse.Namespace) -> int:
    set_up(context.console, allowed=not options.no_setup, tests=options.for_tests)
    return 0


BUILD = Verb(
    "build",
    "build, inspect, smoke and name an image",
    "Take a pinned upstream release through fixes, wheel, image, inspect and smoke; name it when the gate allows.",
    _arguments,
    _run,
)
SETUP = Verb(
    "setup",
    "make sure that a container engine answers",
    "Check for a container engine and the tools that builds need; as root on Debian or Ubuntu install and start them.",
    _setup_arguments,
    _setup,
)
