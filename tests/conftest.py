"""In CI a skipped test is a failed one: everything that a test needs, CI has to bring along."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with Ctrl-C ignored, and processes that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where CI is set, so that no gap passes for a pass."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"a skip counts as a failure in CI: {reason}"
    return report
