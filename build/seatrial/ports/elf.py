"""What a native file says it needs: its dynamic section, read without loading it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, Any

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from seatrial.ports.elf_symbols import Symbols, needed_versions, read_symbols

MAGIC = b"\x7fELF"
"""First bytes of every ELF file."""


@dataclass(frozen=True, slots=True)
class Elf:
    """The facts of one ELF file.

    `rpath` and `runpath` are split at colons and hold `$ORIGIN` as it was written.
    `dynamic` is False for objects, static programs and files that hold only debug data.
    """

    machine: str
    bits: int
    kind: str
    """`EXEC`, `DYN`, `REL` or `CORE`."""
    dynamic: bool = False
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    interpreter: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    """Pairs of library and symbol version that the file needs, for example `libc.so.6`, `GLIBC_2.28`."""
    symbols: Symbols | None = None
    """Dynamic symbols; None where the file does not say where they are."""
    broken: str = ""
    """Why the file cannot be read; the other fields mean nothing then."""


def read_elf(stream: IO[bytes], size: int) -> Elf:
    """Read an ELF file's facts.

    Args:
        stream: seekable, at any position.
        size: length of the file in bytes.

    Never raises for bad content: a file that cannot be read comes back with `broken` set.
    """
    stream.seek(0)
    try:
        return _read(ELFFile(stream), stream, size)
    except Exception as error:  # the parser meets damaged tables with whatever its own code trips over
        return Elf("", 0, "", broken=f"not a readable ELF file: {type(error).__name__} {error}".rstrip())


def _read(elf: Any, stream: IO[bytes], size: int) -> Elf:
    machine = str(elf["e_machine"]).removeprefix("EM_")
    kind = str(elf["e_type"]).removeprefix("ET_")
    bits = int(elf.elfclass)
    if kind not in ("EXEC", "DYN") or _holds_debug_only(elf):
        return Elf(machine, bits, kind)
    segments = list(elf.iter_segments())
    end = max((int(s["p_offset"]) + int(s["p_filesz"]) for s in segments if s["p_type"] == "PT_LOAD"), default=0)
    if end > size:
        return Elf(machine, bits, kind, broken=f"truncated: its segments end at {end} and the file at {size} bytes")
    dynamic = next((segment for segment in segments if isinstance(segment, DynamicSegment)), None)
    if dynamic is None:
        return Elf(machine, bits, kind)
    tags: dict[str, list[str]] = {}
    for tag in dynamic.iter_tags():
        for name in ("needed", "soname", "rpath", "runpath"):
            if tag.entry.d_tag == f"DT_{name.upper()}":
                tags.setdefault(name, []).append(str(getattr(tag, name)))
    interpreter = next((str(s.get_interp_name()) for s in segments if s["p_type"] == "PT_INTERP"), "")
    return Elf(
        machine,
        bits,
        kind,
        dynamic=True,
        soname="".join(tags.get("soname", ())),
        needed=tuple(tags.get("needed", ())),
        rpath=_folders(tags.get("rpath")),
        runpath=_folders(tags.get("runpath")),
        interpreter=interpreter,
        versions=needed_versions(elf),
        symbols=read_symbols(elf, stream),
    )


def _holds_debug_only(elf: Any) -> bool:
    """Tell a separate debug file: its dynamic section is declared and has no bytes."""
    section = elf.get_section_by_name(".dynamic")
    return section is not None and section["sh_type"] == "SHT_NOBITS"


def _folders(values: list[str] | None) -> tuple[str, ...]:
    return tuple(folder for folder in ":".join(values or ()).split(":") if folder)


CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("=20s2I")
_CACHE_ENTRY = struct.Struct("=i3IQ")
_CACHE_ENTRIES_AT = 48


def read_loader_cache(data: bytes) -> dict[str, tuple[str, ...]] | None:
    """Return soname to paths from the bytes of glibc's `/etc/ld.so.cache`, None if it has another form.

    Source: `struct cache_file_new` in glibc's `sysdeps/generic/dl-cache.h`, written since glibc 2.2.
    """
    start = data.find(CACHE_MAGIC)
    if start < 0:
        return None
    table = data[start:]
    try:
        _, count, _ = _CACHE_HEADER.unpack_from(table)
        found: dict[str, tuple[str, ...]] = {}
        for number in range(count):
            _, key, value, _, _ = _CACHE_ENTRY.unpack_from(table, _CACHE_ENTRIES_AT + number * _CACHE_ENTRY.size)
            name, path = _text_at(table, key), _text_at(table, value)
            found[name] = (*found.get(name, ()), path)
    except (struct.error, ValueError):
        return None
    return found


def _text_at(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode(errors="replace")
