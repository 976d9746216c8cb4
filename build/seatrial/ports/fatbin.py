"""Read the CUDA code that a native file carries, and blank out what no wanted device loads.

nvcc puts fat binaries into the sections `.nv_fatbin` and `__nv_relfatbin`: each a header (magic 0xBA55ED50, version,
header size, size of all entries) and entries, each with a header of its own (kind 1 is PTX and 2 machine code, header
size, padded size, architecture as a number, flags) and its bytes, compressed or not. NVIDIA documents no layout; this
one was read off what nvcc 13.0 writes (`-gencode` with and without the suffixes, `-Xfatbin -compress-all`,
`-rdc=true`).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elftools.elf.elffile import ELFFile

from seatrial.model.errors import IntegrityError
from seatrial.model.gpu_code import Arch, CodeKind, GpuCode, needed

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MAGIC = 0xBA55ED50
ALIGNMENT = 8
HEADER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIHHIIIQ")
KINDS = {1: CodeKind.PTX, 2: CodeKind.CUBIN}
ARCH_SPECIFIC, FAMILY_SPECIFIC = 0x100000, 0x200000


@dataclass(frozen=True, slots=True)
class Fatbin:
    """One fat binary: the same kernels for several architectures, of which the driver loads one entry."""

    offset: int
    codes: tuple[GpuCode, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """What was blanked out of one file; sizes in bytes as stored."""

    kept: int
    dropped: int
    without: int
    """Fat binaries in which nothing fits the wanted devices: kernels that they never call."""


def read_fatbins(stream: IO[bytes], name: str) -> tuple[Fatbin, ...]:
    """Return the fat binaries of an ELF file, none if it has no GPU code.

    Args:
        stream: seekable, of an ELF file.
        name: what to call it in an error.

    Raises:
        IntegrityError: a fat binary is damaged.
    """
    elf = ELFFile(stream)
    found: list[Fatbin] = []
    for section_name in SECTIONS:
        section = elf.get_section_by_name(section_name)
        if section is not None and section["sh_type"] != "SHT_NOBITS":
            found += _walk(section.data(), int(section["sh_offset"]), name)
    return tuple(found)


def cut(path: Path, devices: Collection[int]) -> Cut:
    """Zero the bytes of every entry that none of the devices (80, 90, ...) loads; the file keeps its size and layout.

    Compressed archives then hold next to nothing of them, and no offset in the file changes. A file that would keep
    nothing at all is left as it was.

    Raises:
        IntegrityError: a fat binary is damaged, or there is GPU code and none of it fits.
    """
    with path.open("rb") as stream:
        fatbins = read_fatbins(stream, path.name)
    keep = [needed(fatbin.codes, devices) for fatbin in fatbins]
    if fatbins and not any(keep):
        have = sorted({str(code.arch) for fatbin in fatbins for code in fatbin.codes})
        raise IntegrityError(
            f"{path.name} has no GPU code for {', '.join(f'sm_{device}' for device in devices)}",
            why=f"it was compiled for {', '.join(have)}",
            do="build for an architecture that the base supports, or with --all-arches",
        )
    gone = [code for fatbin, kept in zip(fatbins, keep, strict=True) for code in fatbin.codes if code not in kept]
    with path.open("r+b") as stream:
        for code in gone:
            stream.seek(code.offset)
            stream.write(bytes(code.size))
    return Cut(
        kept=sum(code.size for kept in keep for code in kept),
        dropped=sum(code.size for code in gone if not code.removed),
        without=sum(not kept for kept in keep),
    )


def _walk(data: bytes, base: int, name: str) -> Iterator[Fatbin]:
    position = 0
    while position + HEADER.size <= len(data):
        magic, _version, header, size = HEADER.unpack_from(data, position)
        if magic != MAGIC:
            if any(data[position : position + ALIGNMENT]):
                raise _damaged(name, base + position, "a fat binary begins with another word")
            position += ALIGNMENT
            continue
        start, end = position + header, position + header + size
        if header < HEADER.size or end > len(data):
            raise _damaged(name, base + position, f"it would end {end - len(data)} bytes behind its section")
        yield Fatbin(base + position, tuple(_entries(data, start, end, base, name)))
        position = end + -end % ALIGNMENT


def _entries(data: bytes, position: int, end: int, base: int, name: str) -> Iterator[GpuCode]:
    while position < end:
        if position + ENTRY.size > end:
            raise _damaged(name, base + position, "an entry is cut short")
        number, _version, header, size, _packed, _options, _minor, _major, arch, _name, _length, flags = (
            ENTRY.unpack_from(data, position)
        )
        kind = KINDS.get(number)
        begin = position + header
        if header < ENTRY.size or begin + size > end:
            raise _damaged(name, base + position, "an entry is longer than its fat binary")
        if kind is not None:
            suffix = "a" if flags & ARCH_SPECIFIC else "f" if flags & FAMILY_SPECIFIC else ""
            removed = not any(data[begin : begin + 64]) and not data[begin : begin + size].strip(b"\0")
            yield GpuCode(kind, Arch(arch, suffix), base + begin, size, removed)
        position = begin + size


def _damaged(name: str, offset: int, why: str) -> IntegrityError:
    return IntegrityError(
        f"{name}: the GPU code at byte {offset} cannot be read", why=why, do="take the file from its source again"
    )
