"""Changes inside a native file that keep its length: a needed name, a search path, an undefined symbol, a machine."""

from __future__ import annotations

import io
import struct
from typing import Any

from elftools.elf.elffile import ELFFile

AARCH64 = 183


def renamed_need(data: bytes, old: str, new: str) -> bytes:
    """Let a file need another library; the new name may not be longer than the old one."""
    for tag in _dynamic(data):
        if tag.entry.d_tag == "DT_NEEDED" and tag.needed == old:
            return _text(data, "DT_NEEDED", int(tag.entry.d_val), old, new)
    raise LookupError(f"the file does not need {old}")


def renamed_path(data: bytes, old: str, new: str) -> bytes:
    """Change part of a file's RPATH or RUNPATH; the new text has to be as long as the old one."""
    for tag in _dynamic(data):
        for kind, value in (("DT_RPATH", "rpath"), ("DT_RUNPATH", "runpath")):
            if tag.entry.d_tag == kind and old in getattr(tag, value):
                whole = str(getattr(tag, value))
                return _text(data, kind, int(tag.entry.d_val), whole, whole.replace(old, new))
    raise LookupError(f"no search path of the file holds {old}")


def renamed_symbol(data: bytes, part: str) -> bytes:
    """Let a file use a symbol that nobody defines: one that it has from elsewhere and whose name holds `part`."""
    elf: Any = ELFFile(io.BytesIO(data))
    section = elf.get_section_by_name(".dynsym")
    for symbol in section.iter_symbols():
        if symbol["st_shndx"] == "SHN_UNDEF" and part in symbol.name:
            name = str(symbol.name)
            at = int(elf.get_section_by_name(".dynstr")["sh_offset"]) + int(symbol["st_name"])
            return _placed(data, at, name, name[:-1] + ("Z" if name[-1] != "Z" else "Y"))
    raise LookupError(f"the file uses no symbol with {part!r}")


def other_machine(data: bytes, machine: int = AARCH64) -> bytes:
    """Let a file say that it is for another processor; what else it holds stays."""
    return data[:18] + struct.pack("<H", machine) + data[20:]


def renamed_version(data: bytes, old: str, new: str) -> bytes:
    """Let a file need another version of a library's symbols, as one that was linked against a newer C library does."""
    elf: Any = ELFFile(io.BytesIO(data))
    section = elf.get_section_by_name(".gnu.version_r")
    strings = int(elf.get_section_by_name(".dynstr")["sh_offset"])
    for _, ones in section.iter_versions():
        for one in ones:
            if one.name == old:
                at = _offset_of(one, section, data, old)
                changed = bytearray(_placed(data, strings + int(one.entry.vna_name), old, new))
                changed[at : at + 4] = struct.pack("<I", _hash(new))
                return bytes(changed)
    raise LookupError(f"the file needs no {old}")


def _offset_of(one: Any, section: Any, data: bytes, old: str) -> int:
    """Return where the hash of a needed version stands: the loader compares it before the name."""
    start, size = int(section["sh_offset"]), int(section["sh_size"])
    at = data.find(
        struct.pack("<IHHI", _hash(old), one.entry.vna_flags, one.entry.vna_other, one.entry.vna_name), start
    )
    if not start <= at < start + size:
        raise LookupError(f"the entry of {old} is not where it should be")
    return at


def _hash(name: str) -> int:
    """Return the hash of the System V ABI."""
    value = 0
    for letter in name.encode():
        value = (value << 4) + letter
        value = (value ^ ((value & 0xF0000000) >> 24)) & 0x0FFFFFFF
    return value


def _dynamic(data: bytes) -> list[Any]:
    elf: Any = ELFFile(io.BytesIO(data))
    return list(elf.get_section_by_name(".dynamic").iter_tags())


def _text(data: bytes, kind: str, offset: int, old: str, new: str) -> bytes:
    elf: Any = ELFFile(io.BytesIO(data))
    table = int(elf.get_section_by_name(".dynamic").header["sh_link"])
    return _placed(data, int(elf.get_section(table)["sh_offset"]) + offset, old, new)


def _placed(data: bytes, at: int, old: str, new: str) -> bytes:
    if len(new) > len(old):
        raise ValueError(f"{new} is longer than {old}")
    if data[at : at + len(old) + 1] != old.encode() + b"\0":
        raise LookupError(f"{old} is not where it should be")
    return data[:at] + new.encode().ljust(len(old) + 1, b"\0") + data[at + len(old) + 1 :]
