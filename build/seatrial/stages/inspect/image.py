"""Inspect an image: read its file system once, run every check of the table, return one report."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

from seatrial.model.errors import EngineError
from seatrial.model.expectation import Expectation
from seatrial.model.labels import BASE_VERSION_LABEL, PLATFORM_LABEL
from seatrial.model.report import Device, Report
from seatrial.ports.console import Console
from seatrial.ports.images import ImageFacts, Images, OneRun
from seatrial.ports.layers import LayerSummary, read_layers, summary
from seatrial.ports.rootfs import Wants, read_rootfs
from seatrial.stages.inspect import access, called, environment, extensions, secrets
from seatrial.stages.inspect.allowances import common
from seatrial.stages.inspect.environment import MACHINES
from seatrial.stages.inspect.subject import Image, run_check
from seatrial.stages.inspect.table import CHECKS

NOT_STARTED = 125
"""Status in the place of one, as the docker command has it, where a container could not be started."""

_UNREAD = re.compile(r"^/(?:usr/lib|lib|usr/local/cuda[^/]*|opt/rocm[^/]*|opt/intel|var)/")
"""Trees of the system whose files no distribution records, so that their digests are not needed."""

_LISTS = re.compile(r"^/(?:etc/(?:passwd|group|ld\.so\.cache|os-release)|usr/lib/os-release|var/lib/dpkg/status)$")


def inspect_image(
    image: str,
    expected: Expectation | None,
    images: Images,
    console: Console,
    known_layers: LayerSummary | None = None,
) -> Report:
    """Look at everything that can be known of an image without running its server.

    Args:
        image: digest or name of an image that the engine holds.
        expected: what it must be; without it the checks that compare are *not run*, and the gate refuses the report.
        images: the engine.
        known_layers: what the layers hold and hide, where it was read from the archive that was built.

    Raises:
        EngineError: the engine cannot export the image or run a container of it.
        UsageError: the engine does not hold the image.
    """
    started = datetime.now(UTC)
    begun = time.monotonic()
    facts = images.facts(image)
    with _layers_beside(facts.digest, images, known_layers) as (begin, layers):
        subject = _open(facts, expected, images, layers, console)
        begin()
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


def load_extensions(image: str, images: Images, console: Console) -> dict[str, tuple[str, str, tuple[str, ...] | None]]:
    """Return each extension of an image: its path below the site folder, its digest, and what it registers.

    An extension that does not load has None in the place of its operators.

    Raises:
        EngineError: the engine cannot export the image or run a container of it.
    """
    subject = _open(images.facts(image), None, images, lambda: LayerSummary((), ()), console)
    site = subject.python.vllm.site if subject.python.vllm is not None else ""
    registered = extensions.check_extensions(subject).measured.get("operators", {})
    return {
        module: (
            path.removeprefix(f"{site}/"),
            subject.root.entries[path].sha256,
            tuple(registered[module]) if module in registered else None,
        )
        for module, path in extensions.extension_modules(subject).items()
    }


def _open(
    facts: ImageFacts,
    expected: Expectation | None,
    images: Images,
    layers: Callable[[], LayerSummary],
    console: Console,
) -> Image:
    begun = time.monotonic()
    with images.export(facts.digest) as chunks:
        root = read_rootfs(chunks, Wants(keep=_keeps, digest=_digests))
    size = sum(entry.size for entry in root.files())
    console.detail(f"read {len(root.entries)} paths, {size / 1e6:.0f} MB, in {time.monotonic() - begun:.1f} s")
    device = expected.device if expected else ""
    return Image(
        facts=facts,
        root=root,
        python=environment.python_environment(root, facts),
        allowances=(*common(device), *(expected.allowances if expected else ())),
        expected=expected,
        run=_once_each(
            lambda argv, timeout: images.run_once(facts.digest, argv, timeout=timeout),
            lambda: images.facts(facts.digest),
        ),
        layers=layers,
    )


def _once_each(
    run: Callable[[tuple[str, ...], float], OneRun], still_there: Callable[[], object]
) -> Callable[[tuple[str, ...], float], OneRun]:
    """Keep how a command ended, so that two checks may ask for the same.

    A container that cannot be started is a fault of the image as long as the engine answers, which `still_there` asks.
    """
    ended: dict[tuple[str, ...], OneRun] = {}

    def once(argv: tuple[str, ...], timeout: float) -> OneRun:
        if argv not in ended:
            try:
                ended[argv] = run(argv, timeout)
            except EngineError as error:
                still_there()
                ended[argv] = OneRun(NOT_STARTED, "", f"the container cannot be started: {error.why or error.what}")
        return ended[argv]

    return once


@contextlib.contextmanager
def _layers_beside(
    digest: str, images: Images, known: LayerSummary | None
) -> Iterator[tuple[Callable[[], None], Callable[[], LayerSummary]]]:
    """Hand out the way to begin reading the layers, in a second thread, and the way to wait for them.

    An engine gives the file system and the layers slower at once than after each other, so that the reading begins
    when the first is over, beside the checks. Whoever leaves early ends it at the next block.
    """
    over = threading.Event()
    reading: list[Future[LayerSummary]] = []

    def read() -> LayerSummary:
        if known is not None:
            return known
        with images.archive(digest) as chunks:
            return summary(read_layers(itertools.takewhile(lambda _: not over.is_set(), chunks), keeps_of_layers))

    def wait() -> LayerSummary:
        return reading[0].result()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="layers") as pool:
        try:
            yield lambda: reading.append(pool.submit(read)), wait
        finally:
            over.set()


def keeps_of_layers(path: str, size: int) -> bool:
    """Tell whether a file's bytes are needed of a layer that a later one may hide."""
    return secrets.keeps(path, size)


def _keeps(path: str, size: int) -> bool:
    return (
        environment.keeps(path, size)
        or secrets.keeps(path, size)
        or called.keeps(path, size)
        or access.keeps(path, size)
        or _LISTS.match(path) is not None
    )


def _digests(path: str) -> bool:
    return "-packages/" in path or _UNREAD.match(path) is None
