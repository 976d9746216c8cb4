"""Copying zip members raw: same contents, same bytes twice, and nothing unsound gets through."""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.model.errors import DiskError, IntegrityError
from seatrial.ports import zipcopy
from seatrial.ports.zipcopy import Copied, Fresh, check_name, open_zip, write_zip


def make(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def copy(source: Path, target: Path, *extra: Fresh) -> Path:
    with open_zip(source) as archive:
        write_zip(target, archive, [*(Copied(name, name) for name in archive.names), *extra])
    return target


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {info.filename: archive.read(info) for info in archive.infolist()}


letters = st.text("abcüß-_.é漢 ", min_size=1, max_size=8).filter(lambda part: part not in (".", ".."))
layouts = st.dictionaries(
    st.lists(letters, min_size=1, max_size=3).map("/".join),
    st.tuples(st.binary(max_size=3000), st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))),
    max_size=12,
).filter(lambda names: not any(other.startswith(f"{name}/") for name in names for other in names))


class Unseekable(io.BytesIO):
    """Makes zipfile write data descriptors behind the members."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> int:
        raise OSError("no seek")

    def tell(self) -> int:
        raise OSError("no tell")


@settings(max_examples=60, deadline=None)
@given(layouts, st.booleans(), st.binary(max_size=100))
def test_any_layout_comes_through_with_the_same_bytes_twice(
    layout: dict[str, tuple[bytes, int]], descriptors: bool, fresh: bytes
) -> None:
    stream = Unseekable() if descriptors else io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, (data, method) in layout.items():
            archive.writestr(zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 6)), data, method)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.zip"
        source.write_bytes(stream.getvalue())
        first = copy(source, Path(folder) / "1.zip", Fresh("fresh", fresh))
        second = copy(source, Path(folder) / "2.zip", Fresh("fresh", fresh))
        assert first.read_bytes() == second.read_bytes()
        wanted = {name: data for name, (data, _) in layout.items()}
        assert contents(first) == wanted | {"fresh": fresh}
        with open_zip(first) as again:
            assert list(again.names) == [*layout, "fresh"]
            assert [again.info(name).compress_type for name in layout] == [method for _, method in layout.values()]
            assert all(again.info(name).flag_bits & 0x8 == 0 for name in again.names)


def test_compressed_bytes_are_the_source_bytes(tmp_path: Path) -> None:
    data = b"".join(str(number * number).encode() for number in range(5000))
    source = tmp_path / "s.zip"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a", data)
        size = archive.getinfo("a").compress_size
    packed_here = zlib.compress(data, 6, -15)
    raw = source.read_bytes()[31 : 31 + size]
    assert raw != packed_here, "the sample cannot tell copying from packing again"
    assert copy(source, tmp_path / "t.zip").read_bytes()[31 : 31 + size] == raw


def test_fresh_members_depend_on_nothing_but_their_data(tmp_path: Path) -> None:
    source = make(tmp_path / "s.zip", {"a": b"a"})
    result = copy(source, tmp_path / "t.zip", Fresh("tool", b"x" * 100, 0o755))
    with zipfile.ZipFile(result) as archive:
        info = archive.getinfo("tool")
    assert (info.date_time, info.compress_type, info.create_system) == ((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED, 3)
    assert stat.filemode(info.external_attr >> 16) == "-rwxr-xr-x"


def test_big_archives_use_zip64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {f"m{index}": os.urandom(2000) for index in range(5)}
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1500)
    source = make(tmp_path / "s.zip", members)
    result = copy(source, tmp_path / "t.zip", Fresh("fresh", b"f" * 3000))
    assert b"PK\x06\x06" in result.read_bytes()
    monkeypatch.undo()
    assert contents(result) == members | {"fresh": b"f" * 3000}
    again = copy(result, tmp_path / "u.zip")
    assert b"PK\x06\x06" not in again.read_bytes()
    assert contents(again) == contents(result)


def test_copying_works_where_the_kernel_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(tmp_path / "s.zip", {"a": os.urandom(3 << 20), "b": b"b"})
    first = copy(source, tmp_path / "1.zip").read_bytes()

    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "other file system")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert copy(source, tmp_path / "2.zip").read_bytes() == first


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(tmp_path / "s.zip", {"a": b"a"})

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(DiskError, match="no room left"):
        copy(source, tmp_path / "t.zip")


def test_a_source_cut_while_it_is_read(tmp_path: Path) -> None:
    source = make(tmp_path / "s.zip", {"a": os.urandom(200_000)})
    with open_zip(source) as archive:
        os.truncate(source, 1000)
        with pytest.raises(IntegrityError, match="became shorter"):
            write_zip(tmp_path / "t.zip", archive, [Copied("a", "a")])


@pytest.mark.parametrize(
    "name", ["../x", "a/../x", "/x", "a//b", "./a", "a/.", "C:/x", "a\\b", "a\nb", "a\x00b", "", "x/"]
)
def test_names_that_are_refused(name: str) -> None:
    assert check_name(name)


@pytest.mark.parametrize("name", ["a", "a/b.py", "vllm/..hidden", "a/é漢", "a b"])
def test_names_that_are_fine(name: str) -> None:
    assert check_name(name) == ""


def two(path: Path) -> bytes:
    """Return a zip of two stored members, `aa` and `bb`, whose bytes are easy to bend."""
    return make(path, {"aa": b"A" * 50, "bb": b"B" * 50}, zipfile.ZIP_STORED).read_bytes()


def central(data: bytes, name: bytes) -> int:
    """Return where the central directory's entry of a member starts."""
    return data.index(b"PK\x01\x02", data.rindex(name) - 46)


def bend(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


BENT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-40], "not a whole zip"),
    "empty file": (lambda data: b"", "not a whole zip"),
    "no zip": (lambda data: b"hello" * 100, "not a whole zip"),
    "zip slip": (lambda data: data.replace(b"aa", b".."), "leads out"),
    "twice": (lambda data: data.replace(b"aa", b"bb"), "there twice"),
    "encrypted": (lambda data: bend(data, central(data, b"aa") + 8, b"\x01"), "encrypted"),
    "encrypted in front": (lambda data: bend(data, 6, b"\x01"), "packed in another way"),
    "method": (lambda data: bend(data, central(data, b"aa") + 10, b"\x0c"), "packed by method 12"),
    "other name in front": (lambda data: bend(data, 30, b"zz"), "another name in front"),
    "no header": (lambda data: bend(data, 0, b"XX"), "not where the directory says"),
    "overlap": (lambda data: bend(data, central(data, b"aa") + 20, struct.pack("<L", 60)), "overlaps"),
    "past the end": (lambda data: bend(data, central(data, b"bb") + 20, struct.pack("<L", 51)), "past the end"),
    "link": (
        lambda data: bend(data, central(data, b"aa") + 38, struct.pack("<L", 0o120777 << 16)),
        "symbolic link",
    ),
}


@pytest.mark.parametrize("case", BENT)
def test_unsound_archives_are_refused(tmp_path: Path, case: str) -> None:
    change, why = BENT[case]
    path = tmp_path / "x.whl"
    path.write_bytes(change(two(path)))
    with pytest.raises(IntegrityError, match=why) as caught, open_zip(path):
        pass
    assert "\n" not in str(caught.value)
    assert "x.whl" in caught.value.what


def test_a_file_cannot_be_a_folder(tmp_path: Path) -> None:
    path = make(tmp_path / "x.zip", {"a": b"1", "a/b": b"2"})
    with pytest.raises(IntegrityError, match="both a file and a folder"), open_zip(path):
        pass


@pytest.mark.parametrize("what", ["missing.zip", "."])
def test_what_cannot_be_opened(tmp_path: Path, what: str) -> None:
    with pytest.raises(IntegrityError, match="cannot be read"), open_zip(tmp_path / what):
        pass


def test_an_error_of_the_reader_is_not_taken_for_a_bad_archive(tmp_path: Path) -> None:
    path = make(tmp_path / "x.zip", {"a": b"1"})
    with pytest.raises(zipfile.BadZipFile), open_zip(path):
        raise zipfile.BadZipFile("mine")


def test_damaged_contents_show_when_read(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    data = two(path)
    path.write_bytes(bend(data, 40, b"Z"))
    with open_zip(path) as archive:
        assert archive.read("bb") == b"B" * 50
        with pytest.raises(IntegrityError, match="aa is damaged"):
            archive.read("aa")


def test_bombs_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "x.zip", {"a": bytes(2000)})
    monkeypatch.setattr(zipcopy, "READ_LIMIT", 1000)
    with open_zip(path) as archive, pytest.raises(IntegrityError, match="unpacks to 2000 bytes"):
        archive.read("a")


def test_folders_are_left_out(tmp_path: Path) -> None:
    source = tmp_path / "s.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("a/", b"")
        archive.writestr("a/b", b"1")
    assert contents(copy(source, tmp_path / "t.zip")) == {"a/b": b"1"}
