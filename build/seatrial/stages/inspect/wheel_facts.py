"""A wheel as the checks see it: every member read once."""

from __future__ import annotations

import hashlib
import posixpath
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.model.expectation import Expectation
from seatrial.ports.elf import MAGIC, Elf, read_elf
from seatrial.ports.files import disk_errors

CHUNK = 1 << 20

LONGEST = 32 << 20
"""Bytes of METADATA, WHEEL or RECORD that are read; a RECORD of vLLM's has half a million."""

UNREAD = "not run: the archive cannot be read, see wheel-archive"

VERSION_FILE = "vllm/_version.py"

READ = ("METADATA", "WHEEL", "RECORD")
"""Files of dist-info folders whose text is kept."""


@dataclass(slots=True)
class WheelFacts:
    """A wheel as the checks see it: every member read once."""

    name: str
    expected: Expectation | None
    broken: str = ""
    members: list[str] = field(default_factory=list)
    digests: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Member to SHA-256 in hexadecimal and size in bytes."""
    natives: dict[str, Elf] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """METADATA, WHEEL and RECORD of every dist-info folder, by member."""
    oversized: list[str] = field(default_factory=list)
    """Those of them that are too long to be what they are called, and were not read."""

    @property
    def infos(self) -> list[str]:
        """Return the dist-info folders."""
        tops = {member.split("/")[0] for member in self.members if "/" in member}
        return sorted(top for top in tops if top.endswith(".dist-info"))

    def text(self, name: str) -> str | None:
        """Return a file of the only dist-info folder."""
        return self.texts.get(f"{self.infos[0]}/{name}") if len(self.infos) == 1 else None


def read_wheel(path: Path, expected: Expectation | None) -> WheelFacts:
    """Read every member once; what cannot be read is said in `broken`."""
    facts = WheelFacts(path.name, expected)
    try:
        with zipfile.ZipFile(path) as archive, disk_errors(Path(tempfile.gettempdir())):
            for info in archive.infolist():
                facts.members.append(info.filename)
                if not info.is_dir():
                    _read_member(facts, archive, info)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        at = f" at {facts.members[-1]}" if facts.members else ""
        facts.broken = f"{type(error).__name__}{at}: {error}"
    return facts


def _read_member(facts: WheelFacts, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    name, digest = info.filename, hashlib.sha256()
    with archive.open(info) as stream, tempfile.SpooledTemporaryFile(CHUNK) as held:
        block = stream.read(CHUNK)
        keep = block.startswith(MAGIC) or ".dist-info/" in name or name == VERSION_FILE
        while block:
            digest.update(block)
            if keep:
                held.write(block)
            block = stream.read(CHUNK)
        text = keep and (posixpath.basename(name) in READ or name == VERSION_FILE)
        if text and held.tell() > LONGEST:
            facts.oversized.append(name)
        elif text:
            held.seek(0)
            facts.texts[name] = held.read().decode(errors="replace")
        elif keep and ".dist-info/" not in name:
            facts.natives[name] = read_elf(held, info.file_size)
    facts.digests[name] = (digest.hexdigest(), info.file_size)
