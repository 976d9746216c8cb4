"""Builds that go well, builds that are refused, and what of the last build the next one keeps."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import jsonschema
import pytest

from seatrial.ports import process
from seatrial.stages.record import read_record
from tests.fixlab import KERNEL
from tests.minirepo import BASE, REPO, Mini, have_engine, mini_checkout

pytestmark = pytest.mark.engine
STAGES = ("fixes", "ground", "wheel", "image", "inspect", "smoke basic")
WAIT = 60.0


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    found = have_engine()
    yield found
    found.close()


@pytest.fixture
def mini(tmp_path: Path, client: docker.DockerClient) -> Iterator[Mini]:
    with mini_checkout(tmp_path, client) as made:
        yield made


def unchanged(text: str) -> list[str]:
    """Return the stages that said that nothing changed."""
    found, stage = [], ""
    for line in text.splitlines():
        if line.startswith("== "):
            stage = line.removeprefix("== ")
        if line.startswith("    unchanged: ") and stage not in found:
            found.append(stage)
    return found


def names(mini: Mini, newest: int, digests: dict[int, str]) -> dict[str, str]:
    """Return the names that these revisions have."""
    line = f"vllm:{BASE}-{mini.name}"
    return {line: digests[newest]} | {f"{line}-r{revision}": digest for revision, digest in digests.items()}


def test_a_good_build_is_named_and_a_second_one_does_nothing(mini: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    record = mini.built()
    assert record.revision == 1
    assert mini.names() == names(mini, 1, {1: record.image.digest})
    assert mini.images() == [record.image.digest]
    assert mini.leftovers() == []
    schema = json.loads((REPO / "docs" / "record.schema.json").read_text())
    written = json.loads((mini.out / "r1.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(written)
    assert written["fallbacks"], "a bootstrapped base is a second choice and stands in the record"
    assert [fix.id for fix in record.fixes] == ["bug"]
    before = {path: path.stat().st_mtime_ns for path in mini.out.rglob("*") if path.is_file() and path.name != "lock"}

    mini.fake.requests.clear()
    commands: list[list[str]] = []
    writes: list[str] = []
    real_popen, real_post = subprocess.Popen, docker.APIClient._post

    def popen(argv: list[str], **more: Any) -> Any:
        commands.append([Path(argv[0]).name, *argv[1:]])
        return real_popen(argv, **more)

    def post(self: docker.APIClient, url: str, **more: Any) -> Any:
        writes.append(url)
        return real_post(self, url, **more)

    with monkeypatch.context() as patch:
        patch.setattr(process.subprocess, "Popen", popen)
        patch.setattr(docker.APIClient, "_post", post)
        second = mini.build()
    assert second.code == 0, second.text
    assert unchanged(second.text) == list(STAGES)
    assert "runs again" not in second.text
    assert mini.fake.requests == []
    assert writes == [], "the engine was told to do something"
    assert [words for words in commands if words[0] == "docker" and words[1:] != ["buildx", "version"]] == []
    assert {words[0] for words in commands} <= {"docker", "git"}, commands
    assert mini.record() == record
    after = {path: path.stat().st_mtime_ns for path in mini.out.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before


def test_what_was_lost_or_changed_is_made_again_and_said(mini: Mini) -> None:
    first = mini.built()
    digest = first.image.digest

    def again(*said: str, keeps: tuple[str, ...]) -> None:
        ended = mini.build()
        assert ended.code == 0, ended.text
        for words in said:
            assert words in ended.text, ended.text
        assert unchanged(ended.text) == list(keeps), ended.text
        assert mini.record().image.digest == digest
        assert mini.names() == names(mini, 1, {1: digest})
        assert mini.leftovers() == []

    wheel = next(mini.out.glob("*.whl"))
    wheel.unlink()
    again(f"wheel: runs again: {wheel.name} is gone", keeps=("fixes", "ground", "image", "inspect", "smoke basic"))
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    again("does not hold its bytes any more", keeps=("fixes", "ground", "image", "inspect", "smoke basic"))
    mini.forget_images()
    again(
        f"image: runs again: the engine does not hold {digest}",
        keeps=("fixes", "ground", "wheel", "inspect", "smoke basic"),
    )
    report = next(mini.out.rglob("smoke-basic.json"))
    report.write_text(report.read_text().replace("a processor", "another processor"))
    again("smoke-basic: runs again: the report was changed", keeps=STAGES[:-1])
    receipt = next((mini.out / "receipts").glob("wheel-*.json"))
    good = receipt.read_text()
    receipt.write_text(good.replace("overlay", "source"))
    assert receipt.read_text() != good
    again("wheel: runs again: its receipt was changed", keeps=("fixes", "ground", "image", "inspect", "smoke basic"))
    receipt.write_text("{")
    again("wheel: runs again: its receipt is broken", keeps=("fixes", "ground", "image", "inspect", "smoke basic"))
    (mini.root / "smoke_tests/test_one.py").write_text("def test_two():\n    pass\n")
    again(keeps=STAGES[:-1])


def test_a_patched_tree_that_was_edited_or_lost_is_made_again(mini: Mini) -> None:
    digest = mini.built().image.digest
    edited = mini.out / "tree" / KERNEL
    edited.write_text("mine\n")
    ended = mini.build()
    assert ended.code == 0, ended.text
    assert f"fixes: runs again: {KERNEL} in " in ended.text
    assert "BUG" not in edited.read_text()
    assert "mine" not in edited.read_text()
    kept = [path for path in mini.out.glob(f"tree*/{KERNEL}") if path.read_text() == "mine\n"]
    assert len(kept) == 1, "what somebody wrote there was thrown away"
    assert str(kept[0].relative_to(mini.out).parts[0]) in ended.text
    shutil.rmtree(mini.out / "tree")
    ended = mini.build()
    assert ended.code == 0, ended.text
    assert f"{KERNEL} is gone from" in ended.text
    assert mini.record().image.digest == digest
    assert mini.images() == [digest]


def test_a_failed_case_is_refused_with_the_servers_line_and_mended_it_is_named(
    mini: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINI_SMOKE", "fail")
    ended = mini.build()
    ended.must_fail(3, "one/first-request failed: it got 500", "ERROR the state has a wrong dtype", "smoke-basic.json")
    assert not any(mini.half_made().values()), mini.half_made()
    for word, words in (
        ("die", ("the smoke run could not be carried out",)),
        ("other", ("the smoke report is about something else",)),
    ):
        monkeypatch.setenv("MINI_SMOKE", word)
        ended = mini.build()
        ended.must_fail(13, *words)
        assert unchanged(ended.text) == list(STAGES[:-1])
        assert not any(mini.half_made().values()), mini.half_made()
    monkeypatch.delenv("MINI_SMOKE")
    ended = mini.build()
    assert ended.code == 0, ended.text
    assert unchanged(ended.text) == list(STAGES[:-1])
    assert mini.names() == names(mini, 1, {1: mini.record().image.digest})


def test_leaving_a_needed_fix_out_is_refused_though_every_case_passes(mini: Mini) -> None:
    mini.build("--without", "bug").must_fail(3, "leaves out bug", "left out by --without")
    assert not any(mini.half_made().values()), mini.half_made()
    assert "BUG one" in (mini.out / "tree" / KERNEL).read_text()
    record = mini.built()
    assert record.revision == 1
    assert len(mini.images()) == 2


def test_a_new_fix_is_a_new_revision_and_old_names_stay(mini: Mini) -> None:
    first = mini.built()
    tail = mini.add_fix("tail", path="vllm/other.py")
    mini.build("--revision", "1").must_fail(3, "revision 1 is taken by a build of other inputs", "give 2")
    assert mini.names() == names(mini, 1, {1: first.image.digest})
    second = mini.built()
    digests = {1: first.image.digest, 2: second.image.digest}
    assert second.revision == 2
    assert digests[1] != digests[2]
    assert [fix.id for fix in second.fixes] == ["bug", "tail"]
    assert second.wheel.version == f"{BASE}+{mini.name}.st2"
    assert mini.names() == names(mini, 2, digests)
    assert read_record(mini.out / "r1.json") == first
    shutil.rmtree(tail)
    (mini.root / "patches/series.toml").write_text('fixes = [\n  "bug",\n]\n')
    ended = mini.build()
    assert ended.code == 0, ended.text
    assert "stays at revision 2, which is newer" in ended.text
    assert mini.names() == names(mini, 2, digests)
    assert len(mini.images()) == 2


def test_changed_code_makes_receipts_void(mini: Mini) -> None:
    mini.built()
    (mini.root / "build/seatrial/flow/code.py").write_text("x = 1\n")
    ended = mini.build()
    assert ended.code == 0, ended.text
    assert not {"fixes", "ground", "wheel", "image", "inspect"} & set(unchanged(ended.text))
    assert mini.record().revision == 2, "seatrial's own code is an input of the image"


def test_a_second_build_of_the_same_line_is_told_who_has_it(mini: Mini, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    first = mini.start(MINI_SMOKE="hang", MINI_REACHED=str(reached))
    try:
        wait_for(reached, first)
        mini.build().must_fail(2, f"another build of {BASE}-{mini.name} runs here (pid {first.pid})")
    finally:
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=WAIT)
    assert first.returncode == 130, said
    assert mini.built().revision == 1


def wait_for(path: Path, running: subprocess.Popen[str]) -> None:
    """Wait until a process has written a file."""
    import time

    until = time.monotonic() + WAIT
    while not path.exists():
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < until, f"{path.name} was not reached"
        time.sleep(0.02)
