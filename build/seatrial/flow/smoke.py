"""The verb `smoke`: one run, or the same run on two images, with pages for people beside the JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seatrial.flow.project import Project
from seatrial.model.comparison import Comparison, Pair, compare
from seatrial.model.errors import UsageError
from seatrial.model.labels import BASE_VERSION_LABEL, FIXES_LABEL, PLATFORM_LABEL
from seatrial.model.report import Report
from seatrial.model.values import Frozen, canonical_json
from seatrial.ports.console import Console
from seatrial.ports.files import write_atomic
from seatrial.ports.images import ImageFacts, Images
from seatrial.stages.fix_files import load_series
from seatrial.stages.smoke import expected_cases, read_profiles, run_smoke, run_suite, time_limit
from seatrial.stages.smoke_page import comparison_page, headline, report_page


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asked for; an empty text is left to the image or the suite."""

    image: str = ""
    venv: str = ""
    url: str = ""
    platform: str = ""
    profile: str = "basic"
    base: str = ""
    more: tuple[str, ...] = ()
    """Further words, for pytest."""


def smoke(project: Project, asked: Asked, images: Images | None, console: Console) -> Report:
    """Run one profile on one subject.

    Raises:
        UsageError: platform or profile are unknown or missing.
        SmokeError: the run could not be carried out.
    """
    labels = images.facts(asked.image).labels if asked.image and images is not None else {}
    platform, base = _platform(asked, labels), asked.base or labels.get(BASE_VERSION_LABEL, "")
    names = expected_cases(project.smoke_tests, asked.profile, base, platform).cases
    words = [
        word for name in ("image", "venv", "url") if (value := getattr(asked, name)) for word in (f"--{name}", value)
    ]
    words += ["--platform", platform, "--profile", asked.profile]
    words += ["--base", base] if base else []
    limit = time_limit(read_profiles(project.smoke_tests), asked.profile)
    return run_suite(project.root, [*words, *asked.more], names=names, limit=limit, console=console)


def compare_images(project: Project, asked: Asked, other: str, images: Images, console: Console) -> Comparison:
    """Run one profile on an image and on one without its fixes, and return what the fixes are worth here.

    Args:
        other: digest or name of the image without the fixes.

    Raises:
        UsageError: one of the images is not there, or they are not of one base and platform.
        SmokeError: a run could not be carried out.
    """
    mine, theirs = _two_images(asked, other, images)
    platform = _platform(asked, mine.labels)
    base = asked.base or mine.labels.get(BASE_VERSION_LABEL, "")
    if not base:
        raise UsageError(f"{asked.image} does not say which base it was built from", do="give --base V")
    reports = []
    for facts in (mine, theirs):
        with console.step(f"smoke {asked.profile} {facts.digest[:19]} (fixes: {', '.join(fixes_of(facts)) or 'none'})"):
            reports.append(
                run_smoke(
                    project.root, facts.digest, platform=platform, base=base, profile=asked.profile, console=console
                )
            )
    found = compare(
        reports[0],
        reports[1],
        {loaded.id: loaded.fix for loaded in load_series(project.patches).ordered()},
        fixes_of(mine),
        fixes_of(theirs),
    )
    folder = project.out(base, platform) / "reports" / _short(found.with_fixes)
    for name, report in (("with", reports[0]), ("without", reports[1])):
        keep(folder / f"{_stem(found)}-{name}", report, report_page(report))
    keep(folder / _stem(found), found, comparison_page(found))
    console.line(f"written: {folder / _stem(found)}.html, .json, and both reports beside it")
    return found


def say_comparison(found: Comparison, console: Console) -> None:
    """Print a comparison: one line for each part of a fix, and the cases that no fix explains."""
    console.line(headline(found), style="bold")
    for part in found.fixes:
        console.line(f"{part.worth.value:<13} {part.fix} {part.part}: {part.says}")
    for pair in found.unexplained:
        console.line(f"{'unexplained':<13} {_both(pair)}")
    for pair in found.not_judged:
        console.detail(_both(pair))


def _both(pair: Pair) -> str:
    return f"{pair.name}: {pair.with_fixes.value} with, {pair.without.value} without: {pair.reason}"


def keep(stem: Path, report: Frozen, page: str) -> None:
    """Write a report as JSON, and its page beside it."""
    write_atomic(
        stem.with_name(f"{stem.name}.json"), canonical_json(report.model_dump(mode="json", by_alias=True)) + b"\n"
    )
    write_atomic(stem.with_name(f"{stem.name}.html"), page.encode())


def fixes_of(facts: ImageFacts) -> tuple[str, ...]:
    """Return the ids of the fixes that an image's label names; none for an image of somebody else."""
    label = facts.labels.get(FIXES_LABEL, "none")
    return () if label == "none" else tuple(entry.partition("=")[0] for entry in label.split(","))


def _two_images(asked: Asked, other: str, images: Images) -> tuple[ImageFacts, ImageFacts]:
    """Return what the engine says of both images; an image with nothing to compare is refused before any run."""
    mine = images.facts(asked.image)
    try:
        theirs = images.facts(other)
    except UsageError as error:
        raise UsageError(error.what, do=_way(mine)) from None
    for label, what in ((BASE_VERSION_LABEL, "base"), (PLATFORM_LABEL, "platform")):
        values = [facts.labels.get(label, "") for facts in (mine, theirs)]
        if all(values) and values[0] != values[1]:
            raise UsageError(f"the images are of another {what}: {values[0]} and {values[1]}", do=_way(mine))
    if mine.digest == theirs.digest:
        raise UsageError("an image cannot be compared with itself", do=_way(mine))
    if fixes_of(mine) and set(fixes_of(mine)) <= set(fixes_of(theirs)):
        raise UsageError(f"{other} has all fixes that {asked.image} has", do=_way(mine))
    return mine, theirs


def _way(mine: ImageFacts) -> str:
    """Return how an image without fixes is made."""
    base, platform = mine.labels.get(BASE_VERSION_LABEL, "V"), mine.labels.get(PLATFORM_LABEL, "cpu")
    without = " ".join(f"--without {name}" for name in fixes_of(mine)) or "--without FIX"
    return (
        f"make one: nox -s build-{platform} -- --base {base} {without} (it gets no name, "
        "its digest stands in the line that says what was built)"
    )


def _platform(asked: Asked, labels: dict[str, str]) -> str:
    platform = asked.platform or labels.get(PLATFORM_LABEL, "")
    if not platform:
        raise UsageError("no platform is given", do="give --platform cpu, or another row of smoke_tests/profiles.toml")
    return platform


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def _stem(found: Comparison) -> str:
    return f"compare-{found.profile}-{_short(found.without)}"
