"""Zip archives whose compressed members are copied as they are, neither unpacked nor packed again."""

from __future__ import annotations

import errno
import os
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipInfo

from seatrial.model.errors import IntegrityError
from seatrial.ports.files import CHUNK, disk_errors

FRESH_TIME = (1980, 1, 1, 0, 0, 0)
"""Time stamp of members that are made here: the oldest that the format knows, so that nothing depends on a clock."""

READ_LIMIT = 64 << 20
"""Largest member, in bytes unpacked, that is read into memory."""

LOCAL_HEADER = struct.Struct("<4s5H3L2H")
ENCRYPTED = 0x1
UTF8_NAME = 0x800
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, slots=True)
class Copied:
    """A member taken over from the source archive, under the same or another name."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """A member made here. It is stored, not deflated: zlib's output differs from one zlib to another."""

    name: str
    data: bytes
    mode: int = 0o644


class RawZip:
    """A zip archive that was found sound on opening: names, places and sizes; contents are checked when read."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, descriptor: int) -> None:
        self.path = path
        self._archive = archive
        self._descriptor = descriptor
        self._infos = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        self.names = tuple(self._infos)
        """Names of all files in the archive's order; folders are left out."""
        _check_names(path, archive.infolist())
        self._starts = self._check_layout()

    def has(self, name: str) -> bool:
        """Tell whether there is such a file."""
        return name in self._infos

    def info(self, name: str) -> ZipInfo:
        """Return what the central directory says of a member; KeyError if there is none."""
        return self._infos[name]

    def read(self, name: str) -> bytes:
        """Return a member's bytes, its CRC checked.

        Raises:
            KeyError: there is no such member.
            IntegrityError: the data is damaged, or larger than READ_LIMIT.
        """
        info = self._infos[name]
        if info.file_size > READ_LIMIT:
            raise _bad(self.path, f"{name} unpacks to {info.file_size} bytes, more than {READ_LIMIT} are never read")
        try:
            return self._archive.read(info)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise _bad(self.path, f"{name} is damaged: {error}") from None

    def copy_data(self, name: str, target: int, offset: int) -> None:
        """Copy a member's compressed bytes into a file descriptor at an offset."""
        start, size = self._starts[name], self._infos[name].compress_size
        while size > 0:
            done = _copy_some((self._descriptor, start), (target, offset), size)
            if done == 0:
                raise _bad(self.path, "it became shorter while it was read")
            start, offset, size = start + done, offset + done, size - done

    def _check_layout(self) -> dict[str, int]:
        """Return where each member's data starts; every member lies apart from the others, before the directory."""
        starts: dict[str, int] = {}
        end = 0
        for info in sorted(self._archive.infolist(), key=lambda each: each.header_offset):
            if info.header_offset < end:
                raise _bad(self.path, f"{info.filename} overlaps another member")
            start = self._data_start(info)
            end = start + info.compress_size
            if end > self._archive.start_dir:
                raise _bad(self.path, f"{info.filename} runs past the end of the archive's data")
            starts[info.filename] = start
        return starts

    def _data_start(self, info: ZipInfo) -> int:
        raw = os.pread(self._descriptor, LOCAL_HEADER.size, info.header_offset)
        if len(raw) != LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
            raise _bad(self.path, f"{info.filename} is not where the directory says")
        _, _, flags, method, _, _, _, _, _, name_length, extra_length = LOCAL_HEADER.unpack(raw)
        name = os.pread(self._descriptor, name_length, info.header_offset + LOCAL_HEADER.size)
        if name.decode("utf-8" if flags & UTF8_NAME else "cp437", errors="replace") != info.orig_filename:
            raise _bad(self.path, f"{info.filename} has another name in front of its data than in the directory")
        if method != info.compress_type or flags & ENCRYPTED:
            raise _bad(self.path, f"{info.filename} is packed in another way than the directory says")
        return int(info.header_offset + LOCAL_HEADER.size + name_length + extra_length)


@contextmanager
def open_zip(path: Path) -> Iterator[RawZip]:
    """Open a zip archive and check it: whole, names that stay inside, no member twice, none encrypted or hidden.

    Raises:
        IntegrityError: not a zip, cut off, or unsound; says which member and why.
    """
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(path.open("rb"))
            archive = stack.enter_context(zipfile.ZipFile(stream))
            opened = RawZip(path, archive, stream.fileno())
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read", why=error.strerror or "", do="fetch it again") from None
        except (zipfile.BadZipFile, UnicodeDecodeError, struct.error, NotImplementedError) as error:
            raise _bad(path, f"not a whole zip archive ({error})") from None
        yield opened


def write_zip(path: Path, source: RawZip, members: Iterable[Copied | Fresh]) -> None:
    """Write an archive from copied and fresh members, in the order given; the same input gives the same bytes.

    Copied members keep their time and mode; data descriptors and extra fields are left out. ZIP64 is used where
    sizes ask for it. The file is not synced: whoever uses it later checks its digest.

    Raises:
        DiskError: no room, or not allowed to write.
    """
    with disk_errors(path), path.open("wb") as stream, zipfile.ZipFile(stream, "w", allowZip64=True) as target:
        for member in members:
            info = _copied_info(source.info(member.name), member) if isinstance(member, Copied) else _fresh_info(member)
            info.header_offset = target.start_dir
            stream.seek(target.start_dir)
            stream.write(info.FileHeader())
            if isinstance(member, Fresh):
                stream.write(member.data)
            else:
                stream.flush()
                source.copy_data(member.name, stream.fileno(), stream.tell())
                stream.seek(info.compress_size, os.SEEK_CUR)
            # zipfile writes the central directory from these three when it is closed.
            target.filelist.append(info)
            target.NameToInfo[info.filename] = info
            target.start_dir = stream.tell()


def check_name(name: str) -> str:
    """Return why a member's name is not acceptable, or an empty text."""
    if not name or name != name.rstrip("/"):
        return "it names no file"
    if "\\" in name or name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return "it is absolute or holds a backslash"
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        return "it holds a control character"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "it leads out of its folder or is not normal"
    return ""


def _check_names(path: Path, infos: list[ZipInfo]) -> None:
    seen: set[str] = set()
    for info in infos:
        name = info.orig_filename
        if why := check_name(name.removesuffix("/")):
            raise _bad(path, f"member {name!r} is refused: {why}")
        if name in seen:
            raise _bad(path, f"member {name!r} is there twice")
        if info.flag_bits & ENCRYPTED:
            raise _bad(path, f"member {name!r} is encrypted")
        if info.compress_type not in METHODS:
            raise _bad(path, f"member {name!r} is packed by method {info.compress_type}, which wheels do not use")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _bad(path, f"member {name!r} is a symbolic link")
        seen.add(name)
    files = {name for name in seen if not name.endswith("/")}
    for name in files:
        for at in (index for index, letter in enumerate(name) if letter == "/"):
            if name[:at] in files:
                raise _bad(path, f"member {name[:at]!r} is both a file and a folder")


def _copied_info(old: ZipInfo, member: Copied) -> ZipInfo:
    info = ZipInfo(member.new_name, old.date_time)
    info.compress_type, info.external_attr, info.internal_attr = old.compress_type, old.external_attr, old.internal_attr
    info.CRC, info.compress_size, info.file_size = old.CRC, old.compress_size, old.file_size
    info.create_system = old.create_system
    return info


def _fresh_info(member: Fresh) -> ZipInfo:
    info = ZipInfo(member.name, FRESH_TIME)
    info.external_attr = (stat.S_IFREG | member.mode) << 16
    info.CRC, info.compress_size, info.file_size = zlib.crc32(member.data), len(member.data), len(member.data)
    info.create_system = 3  # Unix: external_attr holds a mode
    return info


def _copy_some(source: tuple[int, int], target: tuple[int, int], size: int) -> int:
    """Copy up to `size` bytes between (descriptor, offset) pairs, inside the kernel where it can; return how many."""
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source[0], target[0], size, source[1], target[1])
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
    return os.pwrite(target[0], os.pread(source[0], min(size, CHUNK), source[1]), target[1])


def _bad(path: Path, why: str) -> IntegrityError:
    return IntegrityError(f"{path.name} cannot be used", why=why, do="delete it and fetch it again")
