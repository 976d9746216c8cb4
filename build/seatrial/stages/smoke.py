"""Smoke: real inference over HTTP through the image's own entrypoint.

The suite under `smoke_tests/` does the work in a process of its own, as it does for
anyone who runs it alone; this stage starts it, shows each case as it ends, and reads
its report. What a profile promises is read from the suite's profiles.toml, so a case
that the suite forgot to run is missed by the gate.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import Field

from seatrial.model.errors import CommandError, SmokeError, UsageError
from seatrial.model.gate import Requirement
from seatrial.model.report import Report
from seatrial.model.values import Frozen, Identifier, parse_json, parse_toml
from seatrial.ports.board import followed
from seatrial.ports.console import Console
from seatrial.ports.files import read_committed
from seatrial.ports.process import run

PROFILES = "profiles.toml"
MARGIN = 300.0
"""Seconds on top of all of a profile's own limits, for what happens between cases."""

CARRIED_OUT = (0, 1)
"""Exit codes of pytest with which every case had its turn: all passed, or some failed."""

SWEEP = 60.0
"""Seconds that removing leftovers may take."""

OWN_WORDS: dict[str, str | None] = {"PYTEST_ADDOPTS": None, "PYTEST_PLUGINS": None}
"""Taken away from the suite: options in them (`--server-env`) would try another server than the image's own."""


class _Limits(Frozen):
    ready: float
    request: float
    case: float
    end: float
    stacks: float


class _Group(Frozen):
    name: str
    model: str = ""
    models: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    dtype: str
    quantization: str = ""
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    read_only: bool = False
    cases: tuple[str, ...]


class _Profile(Frozen):
    groups: tuple[_Group, ...]


class _Platform(Frozen):
    device: str
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


class _Server(Frozen):
    flags: tuple[str, ...]


class _NotSupported(Frozen):
    bases: tuple[str, ...]
    platforms: tuple[str, ...]
    models: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    cases: tuple[str, ...]
    reason: str = Field(min_length=1)


class Profiles(Frozen):
    """The whole of profiles.toml."""

    limits: _Limits
    server: _Server
    platforms: dict[Identifier, _Platform]
    profiles: dict[Identifier, _Profile]
    not_supported: tuple[_NotSupported, ...] = ()


def read_profiles(smoke_tests: Path) -> Profiles:
    """Return the suite's profiles.

    Raises:
        LockError: profiles.toml is missing or malformed.
    """
    return parse_toml(Profiles, read_committed(smoke_tests / PROFILES, PROFILES), PROFILES)


def expected_cases(smoke_tests: Path, profile: str, base: str, platform: str) -> Requirement:
    """Return the cases that a profile promises for a base and platform, with those declared as impossible.

    Raises:
        UsageError: there is no such profile or platform.
        LockError: profiles.toml is missing or malformed.
    """
    table = read_profiles(smoke_tests)
    if profile not in table.profiles:
        raise UsageError(f"there is no smoke profile {profile!r}", why=f"{PROFILES} has: {', '.join(table.profiles)}")
    if platform not in table.platforms:
        raise UsageError(f"smoke knows no platform {platform!r}", why=f"{PROFILES} has: {', '.join(table.platforms)}")
    cases: list[str] = []
    refused: dict[str, str] = {}
    for group, model, names in _groups(table.profiles[profile]):
        rules = [
            rule
            for rule in table.not_supported
            if base in rule.bases
            and platform in rule.platforms
            and model in rule.models
            and (rule.groups is None or group in rule.groups)
        ]
        for name in names:
            cases.append(f"{group}/{name}")
            for rule in rules:
                if "*" in rule.cases or name in rule.cases:
                    refused[f"{group}/{name}"] = rule.reason
    return Requirement(kind="smoke", profile=profile, cases=tuple(cases), not_supported=refused)


def _groups(profile: _Profile) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield name, model and cases of each server of a profile."""
    for group in profile.groups:
        if not group.first:
            yield group.name, group.model, group.cases
        for model in group.models:
            for first in group.first:
                words = {"model": model, "case": first}
                yield group.name.format(**words), model, tuple(case.format(**words) for case in group.cases)


def time_limit(table: Profiles, profile: str) -> float:
    """Return the seconds after which a run of a profile cannot be going right any more."""
    limits = table.limits
    servers = list(_groups(table.profiles[profile]))
    cases = sum(len(names) for _, _, names in servers)
    return MARGIN + len(servers) * (limits.ready + limits.end) + cases * limits.case


def run_smoke(
    root: Path, digest: str, *, platform: str, base: str, profile: str, console: Console, read_only_root: bool = False
) -> Report:
    """Smoke an image of the local engine and return what was seen; failed cases are in the report.

    Args:
        root: the checkout, whose `smoke_tests` are run.
        digest: the image; the report has to be about exactly this one.

    Raises:
        SmokeError: the run could not be carried out, or its report is about something else.
    """
    table = read_profiles(root / "smoke_tests")
    wanted = expected_cases(root / "smoke_tests", profile, base, platform)
    words = ["--image", digest, "--platform", platform, "--profile", profile, "--base", base]
    words += ["--read-only-root"] if read_only_root else []
    found = run_suite(root, words, names=wanted.cases, limit=time_limit(table, profile), console=console)
    return _checked(found, digest, platform, base, profile)


def run_suite(root: Path, words: Sequence[str], *, names: Sequence[str], limit: float, console: Console) -> Report:
    """Run the suite with its own options, showing each case as it ends, and return its report.

    Args:
        names: cases in their order, for the board.
        limit: seconds after which the run is stopped.

    Raises:
        SmokeError: the run could not be carried out.
    """
    with tempfile.TemporaryDirectory(prefix="seatrial-smoke-") as folder:
        report, events = Path(folder) / "report.json", Path(folder) / "events.jsonl"
        argv = [sys.executable, "-m", "pytest", str(root / "smoke_tests"), *words]
        argv += ["--report", str(report), "--events", str(events), "--tb=short", "-q", "--color=no"]
        try:
            with _swept(root), followed(events, names, console):
                done = run(argv, timeout=limit, env=OWN_WORDS, check=False, bound=True)
        except CommandError as error:
            raise SmokeError(
                error.what, why=error.output.strip().splitlines()[-1] if error.output else error.why
            ) from None
        if done.status not in CARRIED_OUT or not report.exists():
            raise SmokeError(
                f"the smoke run could not be carried out: {_last_line(done.text, done.stderr)}",
                why=f"pytest ended with status {done.status}",
                do="run it alone to see more: python -m pytest smoke_tests --help",
            )
        return parse_json(Report, report.read_bytes(), "the smoke report")


@contextmanager
def _swept(root: Path) -> Iterator[None]:
    """Remove containers and networks of the suite when it was killed: by Ctrl-C here, or by its time limit."""
    try:
        yield
    except BaseException:
        with suppress(CommandError):
            run([sys.executable, "-m", "smoke_tests.leftovers"], timeout=SWEEP, cwd=root, check=False)
        raise


def _checked(report: Report, digest: str, platform: str, base: str, profile: str) -> Report:
    """Return the report if it is about what was asked for."""
    said = (report.subject, report.platform, report.base, report.profile)
    asked = (digest, platform, base, profile)
    if said != asked or report.subject_kind != "image":
        raise SmokeError(
            "the smoke report is about something else",
            why=f"asked for {', '.join(asked)}; the report says {', '.join(said)}",
            do="run the same again; if it stays so, restore smoke_tests from git",
        )
    return report


def _last_line(text: str, stderr: bytes) -> str:
    lines = [line for line in (text + "\n" + stderr.decode(errors="replace")).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it printed nothing"])[-1].removeprefix("ERROR: ").strip()
