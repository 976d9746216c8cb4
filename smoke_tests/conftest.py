"""The smoke suite's options, and how its cases are chosen, ordered, limited and reported."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator
from errno import EISDIR
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from smoke_tests.evidence import machine_facts
from smoke_tests.profiles import Group, Plan, PlanError, plan, read
from smoke_tests.results import Results, write_report
from smoke_tests.servers import LimitError, SetupError
from smoke_tests.subjects import Subject, device_of, image_subject, url_subject, venv_subject
from smoke_tests.trial import Running, Trial

PLAN = pytest.StashKey[Plan]()
TRIAL = pytest.StashKey[Trial]()
DEVICE = pytest.StashKey[dict[str, Any]]()
OUTCOME = pytest.StashKey[str]()
BEGUN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options."""
    group = parser.getgroup("sea trial")
    group.addoption("--image", help="image digest or name in the local container engine")
    group.addoption("--url", help="a server that runs already")
    group.addoption("--venv", type=Path, help="virtual environment that holds vLLM")
    group.addoption("--platform", help="a row of profiles.toml, such as cpu")
    group.addoption("--profile", default="basic", help="a profile of profiles.toml (default: basic)")
    group.addoption("--base", default="", help="upstream release (default: what the image or environment says)")
    group.addoption("--report", type=Path, help="JSON file for the report")
    group.addoption("--events", type=Path, help="file to which one JSON line a finished case is appended")
    group.addoption("--read-only-root", action="store_true", help="read-only root file system in every group")
    group.addoption("--server-env", action="append", default=[], metavar="NAME=VALUE", help="set in every server")


def pytest_configure(config: pytest.Config) -> None:
    """Check the words of the command line before anything is started."""
    config.addinivalue_line("markers", "case(name): the name that profiles.toml knows a test by")
    config.addinivalue_line("markers", "golden: a case that needs the golden answers of the served model")
    if config.option.help or config.option.markers:
        return
    given = [name for name in ("image", "url", "venv") if getattr(config.option, name)]
    if len(given) != 1 or not config.option.platform:
        raise pytest.UsageError("give --platform and one of --image, --url and --venv")
    try:
        _writable(config.option.report)
        subject = _subject(config)
        made = plan(read(), config.option.profile, config.option.platform, subject.base)
        if subject.kind == "url":
            made = _without_restarts(made)
        config.stash[DEVICE] = device_of(made.device)
    except (PlanError, SetupError) as error:
        raise pytest.UsageError(str(error)) from None
    expected = [f"{group.name}/{case}" for group in made.groups for case in group.cases]
    results = Results(expected, config.option.events, facts={**machine_facts(), **subject.facts()})
    config.stash[PLAN] = made
    config.stash[TRIAL] = Trial(made, subject, results, read_only=config.option.read_only_root)
    config.add_cleanup(config.stash[TRIAL].close)
    signal.signal(signal.SIGTERM, _interrupt)


def _subject(config: pytest.Config) -> Subject:
    option = config.option
    pairs = [entry.partition("=") for entry in option.server_env]
    if bad := [name for name, mark, _ in pairs if not mark]:
        raise PlanError(f"--server-env {bad[0]!r} is not NAME=VALUE")
    environment = {name: value for name, _, value in pairs}
    if option.image:
        return image_subject(option.image, option.base, environment)
    if option.venv:
        return venv_subject(option.venv, option.base, environment)
    return url_subject(option.url, option.base)


def _writable(report: Path | None) -> None:
    """Find out now, and not after minutes, that the report cannot be written."""
    if report is None:
        return
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        if report.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        with tempfile.TemporaryFile(dir=report.parent):
            pass
    except OSError as error:
        raise PlanError(f"--report {report} cannot be written: {error.strerror}") from None


def _without_restarts(made: Plan) -> Plan:
    """Return the plan for a server that runs already: its first group stands for all."""
    return Plan(made.profile, made.groups[:1], made.limits, made.device, made.environment)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test one item for each group that lists its case."""
    marker = metafunc.definition.get_closest_marker("case")
    if marker is None or "running" not in metafunc.fixturenames:
        return
    groups = [
        pytest.param((group, case), id=f"{group.name}/{case}")
        for group in metafunc.config.stash[PLAN].groups
        for case in marker.args
        if case in group.cases
    ]
    metafunc.parametrize("turn", groups)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the cases into the profile's order; a case without a test is a mistake of the profile."""
    wanted = [(group.name, case) for group in config.stash[PLAN].groups for case in group.cases]
    found: dict[tuple[str, str], pytest.Item] = {}
    for item in items:
        turn = _turn(item)
        if turn is not None:
            found[(turn[0].name, turn[1])] = item
    whole = not config.option.keyword and all("::" not in argument for argument in config.args)
    if whole and (missing := [f"{group}/{case}" for group, case in wanted if (group, case) not in found]):
        raise pytest.UsageError(f"profiles.toml names cases that no test has: {', '.join(missing)}")
    items[:] = [found[key] for key in wanted if key in found]


def _turn(item: pytest.Item) -> tuple[Group, str] | None:
    spec = getattr(item, "callspec", None)
    turn = spec.params.get("turn") if spec else None
    return turn if isinstance(turn, tuple) else None


def not_run(request: pytest.FixtureRequest, reason: str) -> None:
    """End the current case as not run."""
    request.node.stash[OUTCOME] = "not-run"
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _bound(request: pytest.FixtureRequest, record_testsuite_property: Callable[[str, object], None]) -> None:
    """Say in the JUnit file what it is about."""
    trial = request.config.stash[TRIAL]
    about = {
        "subject": trial.subject.digest,
        "subject_kind": trial.subject.kind,
        "platform": request.config.option.platform,
        "base": trial.subject.base,
        "profile": trial.plan.profile,
        "device": request.config.stash[DEVICE]["name"],
    }
    for name, value in about.items():
        record_testsuite_property(name, value)


@pytest.fixture
def case(turn: tuple[Group, str]) -> str:
    """Return the name of the case."""
    return turn[1]


@pytest.fixture
def running(request: pytest.FixtureRequest, turn: tuple[Group, str]) -> Running:
    """Return the group's server; a case that cannot have one is declared, never left out."""
    group, case = turn
    trial = request.config.stash[TRIAL]
    if reason := group.not_supported.get(case):
        request.node.stash[OUTCOME] = "not-supported"
        pytest.skip(reason)
    if case not in ("log", "end") and (reason := trial.why_down(group)):
        not_run(request, reason)
    found = trial.running(group)
    found.begin(case)
    if not found.server.ours and case in ("log", "end", "serves-or-refuses"):
        not_run(request, "a server given by --url is not ours to restart, read or end")
    if found.golden is None and request.node.get_closest_marker("golden"):
        not_run(request, "the server serves another model than the golden answers are for")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Limit each case, its set-up included."""
    item.stash[BEGUN] = time.monotonic()
    limits = item.config.stash[PLAN].limits
    turn = _turn(item)
    limit = limits.case + (limits.ready if turn and turn[1] in ("ready", "serves-or-refuses") else 0)

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise LimitError(f"the case did not end within {limit:.0f} s")

    old = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how the case ended, with the server's log line that says why."""
    report = yield
    if call.when == "setup" and report.passed:
        return report
    turn = _turn(item)
    if call.when == "teardown" or turn is None:
        return report
    signal.setitimer(signal.ITIMER_REAL, 0)
    group, case = turn
    trial = item.config.stash[TRIAL]
    seconds = time.monotonic() - item.stash[BEGUN]  # gathering evidence is not the case's time
    more: dict[str, Any] = {}
    running = item.funcargs.get("running") if hasattr(item, "funcargs") else None
    if isinstance(running, Running) and running.measured:
        more["measured"] = dict(running.measured)
    if report.passed:
        outcome = "passed"
    elif report.skipped:
        outcome = item.stash.get(OUTCOME, "not-run")
        more["reason"] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else "").removeprefix("Skipped: ")
    else:
        error = call.excinfo.value if call.excinfo else None
        outcome = "failed" if isinstance(error, AssertionError) else "error"
        more["reason"] = _one_line(error)
        more["log_line"] = trial.keep_evidence(group, case, error)
        report.sections.append(("the server's log says", more["log_line"] or "(nothing that says why)"))
    trial.results.add(f"{group.name}/{case}", outcome, seconds, **more)
    return report


def _one_line(error: BaseException | None) -> str:
    text = " ".join(str(error).split("\nassert ")[0].split())
    return text[:500] if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text}"[:500]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the last server and write the report."""
    config = session.config
    trial = config.stash.get(TRIAL, None)
    if trial is None or config.option.collectonly:
        return
    trial.close()
    if config.option.report:
        report = trial.results.report(
            profile=trial.plan.profile,
            subject=trial.subject.digest,
            subject_kind=trial.subject.kind,
            platform=config.option.platform,
            base=trial.subject.base,
            device=config.stash[DEVICE],
        )
        write_report(config.option.report, report)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print each bad case with the line of the server's log that says why."""
    trial = config.stash.get(TRIAL, None)
    for found in trial.results.cases.values() if trial else ():
        if found["outcome"] in ("failed", "error"):
            terminalreporter.write_line(f"{found['name']}: {found['reason']}", red=True)
            if found.get("log_line"):
                terminalreporter.write_line(f"    log: {found['log_line']}")
