"""Inspect an image: read its file system once, run every check of the table, return one report."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from seatrial.model.expectation import Expectation
from seatrial.model.labels import BASE_VERSION_LABEL, PLATFORM_LABEL
from seatrial.model.report import Device, Report
from seatrial.ports.console import Console
from seatrial.ports.images import Images
from seatrial.ports.rootfs import Wants, read_rootfs
from seatrial.stages.inspect import environment, secrets
from seatrial.stages.inspect.allowances import COMMON
from seatrial.stages.inspect.environment import MACHINES
from seatrial.stages.inspect.subject import Image, run_check
from seatrial.stages.inspect.table import CHECKS

_UNREAD = re.compile(r"^/(?:usr/lib|lib|usr/local/cuda[^/]*|opt/rocm[^/]*|opt/intel|var)/")
"""Trees of the system whose files no distribution records, so that their digests are not needed."""

_LISTS = re.compile(r"^/(?:etc/(?:passwd|group|ld\.so\.cache|os-release)|usr/lib/os-release|var/lib/dpkg/status)$")


def inspect_image(image: str, expected: Expectation | None, images: Images, console: Console) -> Report:
    """Look at everything that can be known of an image without running its server.

    Args:
        image: digest or name of an image that the engine holds.
        expected: what it must be; without it the checks that compare are *not run*, and the gate refuses the report.
        images: the engine.

    Raises:
        EngineError: the engine cannot export the image or run a container of it.
        UsageError: the engine does not hold the image.
    """
    started = datetime.now(UTC)
    begun = time.monotonic()
    subject = _open(image, expected, images, console)
    cases = tuple(run_check(check, subject, console, compares=expected is not None) for check in CHECKS)
    labels = subject.facts.labels
    return Report(
        kind="inspect",
        profile="inspect",
        subject=subject.facts.digest,
        subject_kind="image",
        platform=expected.platform if expected else labels.get(PLATFORM_LABEL, "unknown"),
        base=expected.base if expected else labels.get(BASE_VERSION_LABEL, "unknown"),
        device=Device(kind="none", name=MACHINES.get(subject.facts.machine, subject.facts.machine)),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - begun, 3),
        cases=cases,
    )


def _open(image: str, expected: Expectation | None, images: Images, console: Console) -> Image:
    facts = images.facts(image)
    begun = time.monotonic()
    with images.export(facts.digest) as chunks:
        root = read_rootfs(chunks, Wants(keep=_keeps, digest=_digests))
    size = sum(entry.size for entry in root.files())
    console.detail(f"read {len(root.entries)} paths, {size / 1e6:.0f} MB, in {time.monotonic() - begun:.1f} s")
    return Image(
        facts=facts,
        root=root,
        python=environment.python_environment(root, facts),
        allowances=(*COMMON, *(expected.allowances if expected else ())),
        expected=expected,
        run=lambda argv, timeout: images.run_once(facts.digest, argv, timeout=timeout),
    )


def _keeps(path: str, size: int) -> bool:
    return environment.keeps(path, size) or secrets.keeps(path, size) or _LISTS.match(path) is not None


def _digests(path: str) -> bool:
    return "-packages/" in path or _UNREAD.match(path) is None
