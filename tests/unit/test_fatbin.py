"""GPU code in native files: which devices load it, reading it, and blanking the rest out."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest

from seatrial.model.errors import IntegrityError
from seatrial.model.gpu_code import Arch, CodeKind, GpuCode, needed, runs
from seatrial.ports.fatbin import cut, read_fatbins

FLAGS = {"": 0x11, "a": 0x100011, "f": 0x200011}


def code(name: str, *, removed: bool = False) -> GpuCode:
    kind, _, arch = name.partition(":")
    return GpuCode(CodeKind(kind), Arch.parse(arch), 0, 8, removed)


def entry(name: str, data: bytes) -> bytes:
    """Return a fat binary's entry, its header 64 bytes long as nvcc 13.0 writes it."""
    one = code(name)
    number = 1 if one.kind is CodeKind.PTX else 2
    head = struct.pack(
        "<HHIQIIHHIIIQ", number, 0x101, 64, len(data), 0, 0, 8, 1, one.arch.number, 0, 0, FLAGS[one.arch.suffix]
    )
    return head + bytes(64 - len(head)) + data


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(data: bytes, section: str = ".nv_fatbin") -> bytes:
    """Return an ELF file of two sections: the names and the GPU code."""
    names = b"\0.shstrtab\0" + section.encode() + b"\0"
    start = 64
    table = start + len(data) + len(names) + -(start + len(data) + len(names)) % 8
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 1
    )
    rows = (
        struct.pack("<IIQQQQIIQQ", *[0] * 10),
        struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, start + len(data), len(names), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 11, 1, 0, 0, start, len(data), 0, 0, 8, 0),
    )
    return (header + data + names).ljust(table, b"\0") + b"".join(rows)


def listed(data: bytes) -> list[list[str]]:
    return [
        [f"{one.kind}:{one.arch}{'-' if one.removed else ''}" for one in found.codes]
        for found in read_fatbins(io.BytesIO(data), "lib.so")
    ]


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("cubin:80", {80, 86, 89}),
        ("cubin:86", {86, 89}),
        ("cubin:90", {90}),
        ("cubin:90a", {90}),
        ("cubin:100f", {100, 103}),
        ("cubin:100a", {100}),
        ("cubin:120f", {120, 121}),
        ("ptx:80", {80, 86, 89, 90, 100, 103, 120, 121}),
        ("ptx:90a", {90}),
        ("ptx:120f", {120, 121}),
    ],
)
def test_what_runs_where(name: str, devices: set[int]) -> None:
    assert {device for device in (75, 80, 86, 89, 90, 100, 103, 120, 121) if runs(code(name), device)} == devices


@pytest.mark.parametrize(
    ("have", "devices", "kept"),
    [
        (["cubin:80", "cubin:90", "cubin:90a", "ptx:90"], [90], ["cubin:90", "cubin:90a"]),
        (["cubin:80", "cubin:86", "ptx:80"], [86], ["cubin:86"]),
        (["cubin:80", "cubin:86"], [89], ["cubin:86"]),
        (["cubin:80", "ptx:75", "ptx:80", "ptx:120"], [90], ["ptx:80"]),
        (["cubin:80", "cubin:90a"], [80, 90], ["cubin:80", "cubin:90a"]),
        (["cubin:100f", "ptx:120"], [90], []),
    ],
)
def test_only_what_is_loaded_is_needed(have: list[str], devices: list[int], kept: list[str]) -> None:
    codes = [code(name) for name in have]
    assert needed(codes, devices) == tuple(code(name) for name in kept)


def test_what_was_removed_is_not_there() -> None:
    assert needed([code("cubin:90", removed=True), code("ptx:80")], [90]) == (code("ptx:80"),)


@pytest.mark.parametrize("name", ["gfx942", "sm_9", "90b", "", "sm_90aa"])
def test_no_cuda_architecture(name: str) -> None:
    with pytest.raises(ValueError, match="no CUDA architecture"):
        Arch.parse(name)


@pytest.mark.parametrize("section", [".nv_fatbin", "__nv_relfatbin"])
def test_every_entry_is_read(section: str) -> None:
    data = fatbin(entry("cubin:80", b"eighty.."), entry("cubin:90a", b"ninety.."), entry("ptx:120f", b"text...."))
    assert listed(library(data + bytes(8) + fatbin(entry("cubin:80", b"other...")), section)) == [
        ["cubin:80", "cubin:90a", "ptx:120f"],
        ["cubin:80"],
    ]


def test_a_file_without_gpu_code() -> None:
    assert listed(library(b"12345678", ".rodata")) == []


def test_the_cut_keeps_size_layout_and_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    before = library(
        fatbin(entry("cubin:80", b"A" * 80), entry("cubin:90a", b"B" * 96), entry("ptx:80", b"C" * 64))
        + fatbin(entry("cubin:100f", b"D" * 72))
    )
    path.write_bytes(before)
    done = cut(path, [90])
    assert (done.kept, done.dropped, done.without) == (96, 80 + 64 + 72, 1)
    after = path.read_bytes()
    assert listed(after) == [["cubin:80-", "cubin:90a", "ptx:80-"], ["cubin:100f-"]]
    assert after == before.replace(b"A" * 80, bytes(80)).replace(b"C" * 64, bytes(64)).replace(b"D" * 72, bytes(72))
    assert cut(path, [90]).dropped == 0
    assert path.read_bytes() == after


def test_a_library_with_nothing_for_the_device_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(library(fatbin(entry("cubin:80", b"A" * 80))))
    before = path.read_bytes()
    with pytest.raises(IntegrityError, match=r"lib.so has no GPU code for sm_90") as caught:
        cut(path, [90])
    assert "80" in caught.value.why
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x51\xed\x55\xba" + bytes(12), "begins with another word"),
        (fatbin(entry("cubin:80", b"A" * 80))[:-8], "bytes behind its section"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 24) + bytes(24), "cut short"),
        (fatbin(entry("cubin:80", b"A" * 80)[:-16]), "longer than its fat binary"),
    ],
)
def test_damaged_gpu_code_is_an_error(data: bytes, why: str) -> None:
    with pytest.raises(IntegrityError, match=r"lib.so: the GPU code at byte \d+ cannot be read") as caught:
        listed(library(data))
    assert why in caught.value.why
