"""Ctrl-C, SIGTERM and kill -9 at every stage of the real flow: the next run carries on and makes the same image."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from seatrial.ports.files import scratch_beside, write_atomic
from tests.minirepo import BASE, Mini, have_engine, mini_checkout

pytestmark = pytest.mark.engine
NAME = f"miniq{time.time_ns() % 10**9}x"
"""One platform for all checkouts here: equal inputs have to give equal digests."""
WAIT = 60.0

MOMENTS = {
    "the base's source is being fetched": "seatrial.ports.index:transfer",
    "the base is being imported into git": "seatrial.ports.git:import_tree",
    "the fixes are in and checked, the tree not yet in place": "seatrial.stages.fixes:_all_silent",
    "the tree is in place, its receipt is not": "seatrial.flow.materials:patched_files",
    "the requirements are being fetched": "seatrial.flow.image:fetch_requirements",
    "the wheel is written, not yet in place": "seatrial.stages.wheel:write_zip:after",
    "buildx runs": "seatrial.stages.image:build_archive",
    "the image's archive is built, not loaded": "seatrial.stages.image:build_archive:after",
    "the image is loaded, its receipt is not written": "seatrial.ports.engine:image_size",
    "inspect has read the image": "seatrial.stages.inspect.image:read_rootfs:after",
    "the smoke suite runs": "",
    "the numbered name is given, the moving one is not": "seatrial.stages.naming:_put:after",
    "both names are given, the record is not written": "seatrial.flow.naming:write_record",
}
NAMED = ("the numbered name", "both names")
"""How those moments begin at which the gate has already let a name be given."""
FEW = ("buildx runs", "inspect has read the image", "the smoke suite runs", *list(MOMENTS)[-2:])
"""Moments for SIGTERM, which takes the way of Ctrl-C once it has arrived."""


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    found = have_engine()
    yield found
    found.close()


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory, client: docker.DockerClient) -> str:
    """Return what a build that nobody disturbs makes; the engine forgets it again."""
    with mini_checkout(tmp_path_factory.mktemp("quiet"), client, NAME) as mini:
        return mini.built().image.digest


def stop_at(mini: Mini, moment: str, number: signal.Signals, reached: Path) -> tuple[int, str]:
    """Start a build, wait until it is at a moment, send it a signal, and return how it ended."""
    reached.unlink(missing_ok=True)
    where = {"MINI_PAUSE": MOMENTS[moment]} if MOMENTS[moment] else {"MINI_SMOKE": "hang"}
    running = mini.start(MINI_REACHED=str(reached), **where)
    try:
        until = time.monotonic() + WAIT
        while not reached.exists():
            assert running.poll() is None, f"never came to: {moment}\n{running.communicate()[0]}"
            assert time.monotonic() < until, f"never came to: {moment}"
            time.sleep(0.02)
        running.send_signal(number)
        said, _ = running.communicate(timeout=WAIT)
    finally:
        if running.poll() is None:
            running.kill()
    return running.returncode, said


def children_of(mini: Mini) -> list[str]:
    """Return the commands that still run for this checkout."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(mini.root) in words and "pytest tests" not in words:
                found.append(f"{entry.name} {words}")
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_stopped_at_every_stage_is_carried_on(
    tmp_path: Path, client: docker.DockerClient, digest: str, number: signal.Signals
) -> None:
    with mini_checkout(tmp_path, client, NAME) as mini:
        for moment in MOMENTS if number is not signal.SIGTERM else FEW:
            code, said = stop_at(mini, moment, number, tmp_path / "reached")
            if number is signal.SIGKILL:
                assert code == -signal.SIGKILL, said
            else:
                assert code == 130, said
                assert said.count("seatrial: interrupted: stopped") == 1, said
                assert "run the same again" in said
                assert mini.leftovers() == [], f"{moment}: {said}"
                assert children_of(mini) == [], moment
                assert mini.containers() == [], moment
            assert "Traceback" not in said, said
            assert bool(mini.names()) == moment.startswith(NAMED), f"{moment}: {mini.names()}"
            assert not list(mini.out.glob("r*.json")), moment
        mini.fake.requests.clear()
        ended = mini.build()
        assert ended.code == 0, ended.text
        assert mini.fake.requests == [], "something that was fetched was fetched again"
        assert ended.text.count("    unchanged: ") == 6, ended.text
        record = mini.record()
        assert record.image.digest == digest
        assert record.revision == 1
        line = f"vllm:{BASE}-{NAME}"
        assert mini.names() == {line: digest, f"{line}-r1": digest}
        assert mini.images() == [digest]
        assert mini.containers() == []
        assert mini.leftovers() == [], "what kill -9 leaves is swept by the next run"
        wait_for_orphans(mini)


def wait_for_orphans(mini: Mini) -> None:
    """End what kill -9 could not take along: the suite that sleeps for this test."""
    for entry in children_of(mini):
        subprocess.run(["kill", entry.split()[0]], check=False)


def test_only_what_nobody_holds_is_swept(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    stale, other = tmp_path / ".thing.abcdefgh", tmp_path / ".thingy.abcdefgh"
    for folder in (stale, other):
        folder.mkdir()
        (folder / "half").write_text("x")
    (tmp_path / ".thing.12345678").write_text("half")
    with scratch_beside(target) as first, scratch_beside(target) as second:
        assert first != second
        assert first.is_dir()
        write_atomic(target, b"whole")
        assert first.is_dir()
        assert second.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".thingy.abcdefgh", "thing"]
