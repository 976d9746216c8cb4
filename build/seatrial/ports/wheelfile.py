"""Wheels, read with suspicion: name, dist-info, RECORD and tags have to agree before a member is used."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from installer.exceptions import InstallerError
from installer.records import InvalidRecordEntry, RecordEntry, parse_record_file
from installer.sources import WheelFile as InstallerWheel
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from seatrial.model.errors import BuildError, IntegrityError
from seatrial.model.wheel import field, is_native
from seatrial.ports.zipcopy import RawZip, open_zip

SIGNATURES = ("RECORD.jws", "RECORD.p7s")
"""Members of dist-info that RECORD does not list."""

MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")


@dataclass(frozen=True, slots=True)
class VerifiedWheel:
    """What a full check of a wheel found."""

    path: Path
    distribution: str
    version: str
    tags: tuple[str, ...]
    members: int
    glibc: tuple[int, int] | None
    """Newest C library symbol version that a native member needs; None without natives."""


class Wheel:
    """An open wheel whose structure was checked; members are compared with RECORD when they are read."""

    def __init__(self, archive: RawZip) -> None:
        self.archive = archive
        self.path = archive.path
        parts = self.path.name.removesuffix(".whl").split("-")
        try:
            self.distribution, self.version, _, self.file_tags = parse_wheel_filename(self.path.name)
        except InvalidWheelFilename as error:
            raise _bad(self.path, str(error)) from None
        self.file_tag = (parts[-3], parts[-2], parts[-1])
        self.dist_info = self._find_dist_info()
        self.record = self._read_record()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all members, in the archive's order."""
        return self.archive.names

    def has(self, name: str) -> bool:
        """Tell whether there is such a member."""
        return self.archive.has(name)

    @cached_property
    def metadata(self) -> bytes:
        """Return METADATA, found to name the same distribution and version as the file name does."""
        text = self.read(f"{self.dist_info}/METADATA")
        try:
            name, version = field(text, "Name", "METADATA"), field(text, "Version", "METADATA")
        except BuildError as error:
            raise _bad(self.path, str(error)) from None
        if [canonicalize_name(each) for each in name] != [self.distribution] or version != [str(self.version)]:
            raise _bad(self.path, f"METADATA says {name} {version}, the file name {self.distribution} {self.version}")
        return text

    def read(self, name: str) -> bytes:
        """Return a member's bytes after comparing them with RECORD.

        Raises:
            IntegrityError: there is no such member, it is damaged, or RECORD says other bytes.
        """
        try:
            data = self.archive.read(name)
        except KeyError:
            raise _bad(self.path, f"it holds no {name}") from None
        entry = self.record.get(name)
        if entry is not None and entry != record_entry(name, data):
            raise _bad(self.path, f"{name} is not what RECORD says")
        return data

    def _find_dist_info(self) -> str:
        tops = sorted({name.split("/")[0] for name in self.names if ".dist-info/" in name})
        folders = [top for top in tops if top.endswith(".dist-info")]
        if len(folders) != 1:
            raise _bad(self.path, f"it holds {len(folders)} dist-info folders, not one")
        name, _, version = folders[0].removesuffix(".dist-info").partition("-")
        if canonicalize_name(name) != self.distribution or version != str(self.version):
            raise _bad(self.path, f"{folders[0]} does not belong to {self.path.name}")
        for needed in ("METADATA", "WHEEL", "RECORD"):
            if not self.has(f"{folders[0]}/{needed}"):
                raise _bad(self.path, f"{folders[0]} holds no {needed}")
        return folders[0]

    def _read_record(self) -> dict[str, RecordEntry]:
        """Return RECORD without its own line: one SHA-256 and size for each member, and the directory agrees."""
        own = f"{self.dist_info}/RECORD"
        record: dict[str, RecordEntry] = {}
        try:
            for row in parse_record_file(self.archive.read(own).decode().splitlines()):
                if row[0] in record:
                    raise _bad(self.path, f"RECORD lists {row[0]} twice")
                record[row[0]] = RecordEntry.from_elements(*row)
        except (InvalidRecordEntry, UnicodeDecodeError) as error:
            raise _bad(self.path, f"RECORD is malformed: {error}") from None
        record.pop(own, None)
        unlisted = {own, *(f"{self.dist_info}/{name}" for name in SIGNATURES)}
        for name in self.names:
            if name not in record and name not in unlisted:
                raise _bad(self.path, f"RECORD does not list {name}")
        for name, entry in record.items():
            if not self.has(name):
                raise _bad(self.path, f"RECORD lists {name}, which is not there")
            if entry.hash_ is None or not re.fullmatch(r"sha256=[A-Za-z0-9_-]{43}", str(entry.hash_)):
                raise _bad(self.path, f"RECORD has no SHA-256 for {name}")
            if entry.size != self.archive.info(name).file_size:
                raise _bad(self.path, f"RECORD and the archive disagree on the size of {name}")
        return record


@contextmanager
def open_wheel(path: Path) -> Iterator[Wheel]:
    """Open a wheel and check its structure; contents are checked as they are read.

    Raises:
        IntegrityError: not a zip, unsound, no dist-info, or RECORD does not match the members.
    """
    with open_zip(path) as archive:
        yield Wheel(archive)


def recorded_lines(path: Path) -> tuple[tuple[str, str], ...]:
    """Return path and digest (`sha256=` left out) of every line of a wheel's RECORD; members are not read.

    Raises:
        IntegrityError: no zip, or none or several RECORDs.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
            if len(names) != 1:
                raise _bad(path, f"it holds {len(names)} RECORDs, not one")
            rows = list(parse_record_file(archive.read(names[0]).decode().splitlines()))
    except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError, InvalidRecordEntry, OSError) as error:
        raise _bad(path, f"its RECORD cannot be read: {error}") from None
    return tuple((row[0], row[1].removeprefix("sha256=")) for row in rows)


def verify_wheel(path: Path) -> VerifiedWheel:
    """Check a whole wheel: every member against RECORD, tags against the file name, natives against their tag.

    Raises:
        IntegrityError: the first thing that does not agree.
    """
    with open_wheel(path) as wheel:
        tags = tuple(sorted(str(tag) for tag in wheel.file_tags))
        _ = wheel.metadata
        said = field(wheel.read(f"{wheel.dist_info}/WHEEL"), "Tag", "WHEEL")
        if tuple(sorted(said)) != tags:
            raise _bad(path, f"WHEEL says {', '.join(said)}, the file name {', '.join(tags)}")
        try:
            with InstallerWheel.open(path) as source:
                source.validate_record(validate_contents=True)
        except (InstallerError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise _bad(path, _first_issue(error)) from None
        glibc = native_floor(wheel)
        promised = promised_glibc(wheel.file_tags)
        if glibc is not None and promised is not None and glibc > promised:
            raise _bad(path, f"natives need glibc {_dotted(glibc)}, the file name promises {_dotted(promised)}")
        return VerifiedWheel(path, str(wheel.distribution), str(wheel.version), tags, len(wheel.names), glibc)


def native_floor(wheel: Wheel) -> tuple[int, int] | None:
    """Return the newest GLIBC_x.y symbol version that any native member needs; None when there are no natives."""
    floors: list[tuple[int, int]] = []
    for name in wheel.names:
        if is_native(name):
            with tempfile.TemporaryFile() as unpacked:
                with zipfile.ZipFile(wheel.path) as archive, archive.open(name) as packed:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
                try:
                    section = ELFFile(unpacked).get_section_by_name(".gnu.version_r")
                except ELFError as error:
                    raise _bad(wheel.path, f"{name} is no ELF file: {error}") from None
                if isinstance(section, GNUVerNeedSection):
                    wanted = (need.name for _, needs in section.iter_versions() for need in needs)
                    found = (re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", need) for need in wanted)
                    floors += [(int(each[1]), int(each[2])) for each in found if each]
    return max(floors, default=None)


def promised_glibc(tags: frozenset[Tag]) -> tuple[int, int] | None:
    """Return the oldest C library that a wheel's tags promise to run on; None when they promise none."""
    found = [MANYLINUX.match(tag.platform) for tag in tags]
    return min(((int(each[1]), int(each[2])) for each in found if each), default=None)


def record_entry(name: str, data: bytes) -> RecordEntry:
    """Return the RECORD entry of a member."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return RecordEntry.from_elements(name, f"sha256={digest}", str(len(data)))


def same_release(left: str, right: str) -> bool:
    """Tell whether two versions are builds of one release: equal but for their local parts."""
    return Version(left).public == Version(right).public


def _first_issue(error: Exception) -> str:
    issues = getattr(error, "issues", None)
    return str(issues[0]) if issues else str(error)


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def _bad(path: Path, why: str) -> IntegrityError:
    return IntegrityError(f"{path.name} cannot be used", why=why, do="delete it and fetch it again")
