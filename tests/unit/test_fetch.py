from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from seatrial.model.base import BaseLock, Role
from seatrial.model.errors import CommandError, IntegrityError, LockError, UnsupportedError
from seatrial.ports import process, release_tag
from seatrial.stages.fetch import TreeSource, fetch_artifact, fetch_tree
from seatrial.stages.lock_base import lock_base
from tests.fakebase import COMMIT, CPU, OFFICIAL, VERSION, FakeBase
from tests.wheelmaker import row

MEMBERS = [
    "vllm-1.2.3.dist-info/METADATA",
    "vllm-1.2.3.dist-info/RECORD",
    "vllm-1.2.3.dist-info/WHEEL",
    "vllm/__init__.py",
    "vllm/_version.py",
    "vllm/a.py",
    "vllm/cuda_only.py",
]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBase:
    def refuse(argv: list[str], **options: object) -> process.Completed:
        raise CommandError("git ended with status 128")

    monkeypatch.setattr(release_tag.process, "run", refuse)
    return FakeBase(tmp_path)


def locked(base: FakeBase) -> BaseLock:
    made = lock_base(VERSION, commit=COMMIT, index=base.index, cache=base.cache, console=base.console)
    base.fake.requests.clear()
    return made


def tree(base: FakeBase, lock: BaseLock, role: Role | None = Role.CPU_WHEEL) -> TreeSource:
    return fetch_tree(lock, role, cache=base.cache, index=base.index, console=base.console)


def republish(base: FakeBase, change: dict[str, bytes], record: str | None = None) -> None:
    """Put other bytes under the official wheel's name, as a bad mirror would."""
    base.official.update(change)
    base.record = record
    honest = base.fake.files["vllm"][OFFICIAL]
    base.publish()
    base.fake.lie_about[OFFICIAL] = base.fake.files["vllm"][OFFICIAL]
    base.fake.files["vllm"][OFFICIAL] = honest


def test_an_artifact_is_fetched_once_and_checked(base: FakeBase) -> None:
    lock = locked(base.publish())
    path = fetch_artifact(lock, Role.CPU_WHEEL, cache=base.cache, index=base.index, console=base.console)
    assert path.name == CPU
    assert hashlib.sha256(path.read_bytes()).hexdigest() == lock.artifact(Role.CPU_WHEEL).sha256
    base.fake.requests.clear()
    assert fetch_artifact(lock, Role.CPU_WHEEL, cache=base.cache, index=base.index, console=base.console) == path
    assert base.fake.requests == []


def test_a_role_that_the_base_lacks_is_said(base: FakeBase) -> None:
    lock = locked(base.publish())
    with pytest.raises(UnsupportedError, match=r"base 1.2.3 has no sdist"):
        fetch_artifact(lock, Role.SDIST, cache=base.cache, index=base.index, console=base.console)


def test_an_sdist_is_the_tree_where_there_is_one(base: FakeBase) -> None:
    lock = locked(base.publish(sdist=True))
    source = tree(base, lock)
    assert (source.role, source.path.name) == (Role.SDIST, "vllm-1.2.3.tar.gz")
    assert source.sha256 == hashlib.sha256(source.path.read_bytes()).hexdigest()


def test_else_the_tree_is_the_official_wheels_python(base: FakeBase) -> None:
    source = tree(base, locked(base.publish()))
    assert source.role is Role.OFFICIAL_WHEEL
    with zipfile.ZipFile(source.path) as archive:
        assert archive.namelist() == MEMBERS
        assert archive.read("vllm/a.py") == base.official["vllm/a.py"]
        assert all(info.date_time == (1980, 1, 1, 0, 0, 0) and info.compress_type == 0 for info in archive.infolist())
    assert source.sha256 == hashlib.sha256(source.path.read_bytes()).hexdigest()
    assert all("range" in headers for headers in base.fake.asked("/files/"))


def test_the_tree_is_the_same_bytes_however_it_was_read(base: FakeBase, tmp_path: Path) -> None:
    lock = locked(base.publish())
    by_range = tree(base, lock)
    other = FakeBase(tmp_path / "other").publish()
    whole = tree(other, lock, Role.OFFICIAL_WHEEL)
    assert whole.sha256 == by_range.sha256
    assert [headers.get("range") for headers in other.fake.asked("/files/")] == [None]


def test_a_kept_tree_costs_no_request(base: FakeBase) -> None:
    lock = locked(base.publish())
    first = tree(base, lock)
    base.fake.requests.clear()
    assert tree(base, lock) == first
    assert base.fake.requests == []


def rewrite(path: Path, change: dict[str, bytes | None]) -> None:
    with zipfile.ZipFile(path) as archive:
        files: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    files.update(change)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            if data is not None:
                archive.writestr(name, data)
    path.write_bytes(buffer.getvalue())


@pytest.mark.parametrize(
    "change",
    [
        {"vllm/a.py": b"a = 2\n"},
        {"vllm/a.py": None},
        {"vllm/evil.py": b"evil\n"},
        {"vllm-1.2.3.dist-info/RECORD": b""},
        {"vllm-1.2.3.dist-info/RECORD": None},
        None,
    ],
)
def test_a_damaged_tree_is_thrown_away_and_made_again(base: FakeBase, change: dict[str, bytes | None] | None) -> None:
    lock = locked(base.publish())
    first = tree(base, lock)
    kept = first.path.read_bytes()
    if change is None:
        first.path.write_bytes(kept[:-50])
    else:
        rewrite(first.path, change)
    assert tree(base, lock) == first
    assert first.path.read_bytes() == kept
    assert "does not hold its bytes any more: thrown away" in base.out.getvalue()


def test_what_a_killed_run_left_is_cleared(base: FakeBase) -> None:
    lock = locked(base.publish())
    first = tree(base, lock)
    first.path.unlink()
    (first.path.parent / ".x.tmp").write_bytes(b"half")
    assert tree(base, lock) == first
    assert [path.name for path in first.path.parent.iterdir()] == [first.path.name]


def test_another_record_than_the_locked_one_is_refused(base: FakeBase) -> None:
    lock = locked(base.publish())
    republish(base, {"vllm/a.py": b"a = 666\n"})
    with pytest.raises(IntegrityError, match=r"RECORD of vllm-1.2.3.* is not the one in its lock"):
        tree(base, lock)
    assert not list((base.cache.root / "trees").rglob("*.zip"))


def test_a_member_that_is_not_what_record_says_is_refused(base: FakeBase) -> None:
    lock = locked(base.publish())
    with zipfile.ZipFile(io.BytesIO(base.fake.files["vllm"][OFFICIAL])) as archive:
        record = archive.read("vllm-1.2.3.dist-info/RECORD").decode()
    republish(base, {"vllm/a.py": b"a = 666\n"}, record)
    with pytest.raises(IntegrityError, match=r"vllm/a\.py is not what its wheel's RECORD says"):
        tree(base, lock)


def test_a_member_that_record_names_and_the_wheel_lacks_is_refused(base: FakeBase) -> None:
    base.publish()
    with zipfile.ZipFile(io.BytesIO(base.fake.files["vllm"][OFFICIAL])) as archive:
        record = archive.read("vllm-1.2.3.dist-info/RECORD").decode()
    base.record = row("vllm/gone.py", b"gone") + "\n" + record
    base.publish()
    with pytest.raises(IntegrityError, match=r"lacks 1 files of its RECORD; the first: vllm/gone\.py"):
        tree(base, locked(base))


def test_a_lock_without_a_digest_of_the_record_is_refused(base: FakeBase) -> None:
    lock = locked(base.publish())
    bare = [each.model_copy(update={"record_sha256": None}) for each in lock.artifacts]
    with pytest.raises(LockError, match=r"has no digest of the RECORD"):
        tree(base, lock.model_copy(update={"artifacts": tuple(bare)}))
