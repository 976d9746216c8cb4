"""Inspect a wheel: what can be known of it before it is installed anywhere."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from seatrial.model.errors import UsageError
from seatrial.model.expectation import Expectation
from seatrial.model.report import Device, Report
from seatrial.ports.console import Console
from seatrial.ports.files import sha256_file
from seatrial.stages.inspect.subject import Check, run_check
from seatrial.stages.inspect.wheel_build import (
    check_wheel_accelerator,
    check_wheel_names,
    check_wheel_requirements,
    check_wheel_symbols,
    check_wheel_version,
)
from seatrial.stages.inspect.wheel_checks import (
    check_archive,
    check_identity,
    check_natives,
    check_tags,
    check_wheel_patched,
    check_wheel_record,
)
from seatrial.stages.inspect.wheel_facts import WheelFacts, read_wheel


def inspect_wheel(path: Path, expected: Expectation | None, console: Console) -> Report:
    """Look at everything that can be known of a wheel without installing it.

    Args:
        path: the wheel file.
        expected: what it must be; without it the checks that compare are *not run*.

    Raises:
        UsageError: there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"there is no wheel {path}", do="correct the path")
    started = datetime.now(UTC)
    begun = time.monotonic()
    facts = read_wheel(path, expected)
    cases = tuple(run_check(check, facts, console, compares=expected is not None) for check in WHEEL_CHECKS)
    return Report(
        kind="inspect",
        profile="inspect",
        subject=f"sha256:{sha256_file(path)}",
        subject_kind="wheel",
        platform=expected.platform if expected else "unknown",
        base=expected.base if expected else "unknown",
        device=Device(kind="none", name="none"),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - begun, 3),
        cases=cases,
    )


WHEEL_CHECKS: tuple[Check[WheelFacts], ...] = (
    Check(
        "wheel-archive",
        "The archive can be read to its end, and its names are sound.",
        "Delete the file and make or fetch it again.",
        check_archive,
    ),
    Check(
        "wheel-record",
        "RECORD lists every member with its digest and size, and nothing else.",
        "Write RECORD after the last change.",
        check_wheel_record,
    ),
    Check(
        "wheel-identity",
        "File name, dist-info folder and METADATA name one distribution and version.",
        "Make the wheel again with one version throughout; never rename a wheel.",
        check_identity,
    ),
    Check("wheel-tags", "File name and WHEEL carry the same tags.", "Write WHEEL's tags from the name.", check_tags),
    Check(
        "wheel-natives",
        "Native members fit the machine and the C library that the tags promise.",
        "Compile on the promised system, or promise what the members need.",
        check_natives,
    ),
    Check(
        "wheel-symbols",
        "Every name of the wheel's own that a native member asks for is defined in one of them.",
        "Compile every source whose functions the bindings name, or leave the binding out.",
        check_wheel_symbols,
    ),
    Check(
        "wheel-accelerator",
        "Version, native members and platform name one accelerator.",
        "Take the wheel of this platform, or correct its local version.",
        check_wheel_accelerator,
    ),
    Check(
        "wheel-version",
        "METADATA and the module say one version, of the base's commit.",
        "Throw the build tree away and build from the pinned commit.",
        check_wheel_version,
    ),
    Check(
        "wheel-names",
        "The wheel brings the module that it is named after and no other.",
        "Name the packages that belong into the wheel, one by one.",
        check_wheel_names,
    ),
    Check(
        "wheel-requirements",
        "What METADATA requires is in the lock, in a version that it accepts.",
        "Correct METADATA's versions, or solve the lock again.",
        check_wheel_requirements,
        needs_expectation=True,
    ),
    Check(
        "wheel-patched",
        "The wheel holds what the build made: the files that the fixes changed, and all others.",
        "Make the wheel from the patched tree.",
        check_wheel_patched,
        needs_expectation=True,
    ),
)
"""In the order in which they run."""
