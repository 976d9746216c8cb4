"""The word `smoke`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from seatrial.cli.verb import Context, Verb
from seatrial.flow.smoke import Asked, compare_images, say_comparison, smoke
from seatrial.model.comparison import Comparison, Worth
from seatrial.model.errors import FindingsError, SmokeError, UsageError
from seatrial.model.report import Outcome, Report
from seatrial.model.values import canonical_json
from seatrial.ports.engine import connect
from seatrial.ports.files import write_atomic
from seatrial.ports.images import DockerImages
from seatrial.ports.process import run_through
from seatrial.stages.smoke_page import comparison_page, report_page

PASSED_ON = ("--collect-only", "--co", "--markers", "--fixtures", "--version")
"""Words with which nothing is tried: pytest answers them itself."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--image", metavar="IMAGE", default="", help="digest or name in the engine; may stand first, alone"
    )
    parser.add_argument("--venv", metavar="PATH", default="", help="virtual environment that holds vLLM")
    parser.add_argument("--url", metavar="URL", default="", help="a server that runs already")
    parser.add_argument(
        "--platform", metavar="P", default="", help="row of profiles.toml; the image's own when left out"
    )
    parser.add_argument("--profile", metavar="NAME", default="basic", help="what is asked (basic when left out)")
    parser.add_argument("--base", metavar="V", default="", help="upstream release; what the image says when left out")
    parser.add_argument(
        "--compare", metavar="IMAGE", default="", help="one without fixes: tell what each fix is worth here"
    )
    parser.add_argument("--report", metavar="FILE", help="write the report, or the comparison, as JSON")
    parser.add_argument("--html", metavar="FILE", help="write it as a page that needs nothing else")


def _smoke(context: Context, options: argparse.Namespace) -> int:
    """Run the suite, show it, keep it; what the parser does not know goes on to pytest."""
    words = [word for word in options.words if word != "--json"]
    if set(words) & set(PASSED_ON):
        return run_through([sys.executable, "-m", "pytest", str(context.project.smoke_tests), *words])
    parser = _Words(
        prog="seatrial smoke", description=SMOKE.description, epilog="Other words are pytest's own.", allow_abbrev=False
    )
    _arguments(parser)
    first = [] if not words or words[0].startswith("-") else ["--image", words.pop(0)]
    own, more = parser.parse_known_args([*first, *words])
    if sum(bool(value) for value in (own.image, own.venv, own.url)) != 1:
        raise UsageError("nothing to try, or too much", do="give one of IMAGE, --venv and --url")
    for path in (own.report, own.html):
        if path and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: its folder does not exist", do="correct the path")
    asked = Asked(own.image, own.venv, own.url, own.platform, own.profile, own.base, tuple(more))
    images = DockerImages(connect()) if own.image else None
    if not own.compare:
        report = smoke(context.project, asked, images, context.console)
        _keep(own, report, report_page(report))
        context.console.result(report.model_dump(mode="json", by_alias=True))
        return _judge(context, report)
    if images is None or more:
        raise UsageError("--compare takes two images and no words of pytest", do="give IMAGE --compare IMAGE")
    found = compare_images(context.project, asked, own.compare, images, context.console)
    _keep(own, found, comparison_page(found))
    context.console.result(found.model_dump(mode="json", by_alias=True))
    say_comparison(found, context.console)
    return _judge_both(found)


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, do="see: seatrial smoke --help")


def _keep(own: argparse.Namespace, found: Report | Comparison, page: str) -> None:
    if own.report:
        write_atomic(Path(own.report), canonical_json(found.model_dump(mode="json", by_alias=True)) + b"\n")
    if own.html:
        write_atomic(Path(own.html), page.encode())


def _judge(context: Context, report: Report) -> int:
    """Say how a run ended; a failed case is a finding, cases that were not run alone are said."""
    counts = {outcome: sum(case.outcome is outcome for case in report.cases) for outcome in Outcome}
    words = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    context.console.line(f"smoke {report.profile}: {words} ({report.seconds:.0f} s): {report.subject}")
    wrong = [case for case in report.cases if case.outcome in (Outcome.FAILED, Outcome.ERROR)]
    if wrong:
        raise FindingsError(
            f"{len(wrong)} of {len(report.cases)} cases are red",
            why=", ".join(case.name for case in wrong),
            do="see the lines above; --html FILE keeps the log's end and the stacks",
        )
    if not counts[Outcome.PASSED]:
        raise SmokeError("no case was tried", why=words or "no case was chosen")
    return 0


def _judge_both(found: Comparison) -> int:
    red = [part for part in found.fixes if part.worth is Worth.STILL_RED]
    worse = [pair for pair in found.unexplained if pair.with_fixes in (Outcome.FAILED, Outcome.ERROR)]
    if red or worse:
        raise FindingsError(
            f"the image with the fixes is red in {len(red) + len(worse)} places",
            why=", ".join([*(f"{part.fix} {part.part}" for part in red), *(pair.name for pair in worse)]),
            do="see the lines above",
        )
    return 0


SMOKE = Verb(
    "smoke",
    "make an image, an environment or a server answer real requests",
    "Run a smoke profile on IMAGE, --venv PATH or --url URL; with --compare also on an image without the fixes.",
    _arguments,
    _smoke,
    passes_words=True,
)
