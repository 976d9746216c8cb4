"""What is read from native files, good and damaged."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import _pydantic_core

from seatrial.ports.elf import read_elf, read_loader_cache
from tests.imagemaker import elf_bytes, loader_cache


def test_the_dynamic_section_is_read() -> None:
    data = elf_bytes(
        ["liba.so.1", "libb.so"], soname="libme.so", runpath="$ORIGIN/x:/opt/y", rpath="/z", interpreter="/lib64/ld.so"
    )
    elf = read_elf(io.BytesIO(data), len(data))
    assert (elf.machine, elf.bits, elf.kind, elf.dynamic, elf.broken) == ("X86_64", 64, "DYN", True, "")
    assert elf.needed == ("liba.so.1", "libb.so")
    assert (elf.soname, elf.interpreter) == ("libme.so", "/lib64/ld.so")
    assert (elf.runpath, elf.rpath) == (("$ORIGIN/x", "/opt/y"), ("/z",))


def test_a_real_extension_names_the_symbol_versions_that_it_needs() -> None:
    path = Path(str(_pydantic_core.__file__))
    with path.open("rb") as stream:
        elf = read_elf(stream, path.stat().st_size)
    assert "libc.so.6" in elf.needed
    assert any(name.startswith("GLIBC_2.") for library, name in elf.versions if library == "libc.so.6")


def test_objects_are_not_dynamic() -> None:
    data = elf_bytes(kind=1)
    elf = read_elf(io.BytesIO(data), len(data))
    assert (elf.kind, elf.dynamic, elf.broken) == ("REL", False, "")


def test_a_truncated_file_says_so() -> None:
    data = elf_bytes(["liba.so"])
    assert "truncated" in read_elf(io.BytesIO(data[:-20]), len(data) - 20).broken


@pytest.mark.parametrize("data", [b"\x7fELF", b"\x7fELF\x02\x01\x01" + bytes(20), elf_bytes()[:70]])
def test_a_file_that_is_elf_by_its_first_bytes_only_is_broken(data: bytes) -> None:
    assert read_elf(io.BytesIO(data), len(data)).broken


@given(st.integers(7, 400), st.integers(0, 255))
def test_no_damage_raises(at: int, value: int) -> None:
    data = bytearray(elf_bytes(["liba.so.1"], soname="libme.so", runpath="$ORIGIN"))
    data[at % len(data)] = value
    read_elf(io.BytesIO(bytes(data)), len(data))


def test_the_loader_cache_is_read() -> None:
    data = loader_cache(["/lib/x/liba.so.1", "/opt/y/libb.so"])
    assert read_loader_cache(data) == {"liba.so.1": ("/lib/x/liba.so.1",), "libb.so": ("/opt/y/libb.so",)}
    assert read_loader_cache(b"ld.so-1.7.0\0" + bytes(4) + data) == read_loader_cache(data)


@pytest.mark.parametrize("data", [b"", b"ld.so-1.7.0", loader_cache(["/lib/liba.so"])[:60]])
def test_another_form_of_cache_is_none(data: bytes) -> None:
    assert read_loader_cache(data) is None


@pytest.mark.skipif(not Path("/etc/ld.so.cache").exists() or sys.platform != "linux", reason="no glibc here")
def test_this_machines_own_cache_is_read() -> None:
    found = read_loader_cache(Path("/etc/ld.so.cache").read_bytes())
    assert found is not None
    assert any(name.startswith("libc.so") for name in found)
