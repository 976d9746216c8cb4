"""The dynamic symbols of a native file: what it brings, what it asks of others, and which versions it defines.

The tables are taken apart with `struct`: pyelftools makes an object a symbol, which takes a minute for an image's
400,000; this takes under two seconds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, Any

UNDEFINED = 0
"""Section index of a symbol that another file has to bring."""

BOUND = (1, 2, 10)
"""Bindings that others can find: global, weak, unique."""

GLOBAL = 1

WEAK_VERSION = 2
"""Flag of a needed version that may be missing."""

_SYMBOL = {64: struct.Struct("<IBBHQQ"), 32: struct.Struct("<IIIBBH")}


@dataclass(frozen=True, slots=True)
class Symbols:
    """Dynamic symbols of one file."""

    wanted: tuple[str, ...]
    """Names that have to come from another file; weak ones, which may stay without a value, left out."""
    brought: frozenset[int]
    """`symbol_key` of every name that others can find here: an image has 300,000, and nothing asks how they read."""
    versions: frozenset[str]
    """Symbol versions that the file defines (`GLIBC_2.38`)."""


def symbol_key(name: str) -> int:
    """Return the number by which a name is looked up; it holds for this process only."""
    return hash(name.encode(errors="surrogateescape"))


def read_symbols(elf: Any, stream: IO[bytes]) -> Symbols | None:
    """Read the dynamic symbols of an opened ELF file, None where it has no section that says where they are."""
    table = elf.get_section_by_name(".dynsym")
    if table is None or not elf.little_endian or table["sh_type"] == "SHT_NOBITS":
        return None
    strings = elf.get_section(table["sh_link"])
    symbols, names = _bytes(stream, table), _bytes(stream, strings)
    wanted: dict[bytes, None] = {}
    brought: set[int] = set()
    layout = _SYMBOL[elf.elfclass]
    for fields in layout.iter_unpack(symbols[: len(symbols) // layout.size * layout.size]):
        at = fields[0]
        info, section = (fields[1], fields[3]) if elf.elfclass == 64 else (fields[3], fields[5])
        binding = info >> 4
        if not at or binding not in BOUND:
            continue
        name = names[at : names.index(b"\0", at)]
        if section != UNDEFINED:
            brought.add(hash(name))
        elif binding == GLOBAL:
            wanted[name] = None
    return Symbols(
        tuple(name.decode(errors="surrogateescape") for name in wanted), frozenset(brought), _defined_versions(elf)
    )


def needed_versions(elf: Any) -> tuple[tuple[str, str], ...]:
    """Return pairs of library and symbol version without which the loader refuses the file."""
    section = elf.get_section_by_name(".gnu.version_r")
    if section is None or not hasattr(section, "iter_versions"):
        return ()
    return tuple(
        (str(need.name), str(one.name))
        for need, ones in section.iter_versions()
        for one in ones
        if not int(one.entry["vna_flags"]) & WEAK_VERSION
    )


def _defined_versions(elf: Any) -> frozenset[str]:
    section = elf.get_section_by_name(".gnu.version_d")
    if section is None or not hasattr(section, "iter_versions"):
        return frozenset()
    return frozenset(str(one.name) for _, ones in section.iter_versions() for one in ones)


def _bytes(stream: IO[bytes], section: Any) -> bytes:
    stream.seek(int(section["sh_offset"]))
    return stream.read(int(section["sh_size"]))
