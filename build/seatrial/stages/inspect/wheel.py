"""Inspect a wheel: what can be known of it before it is installed anywhere."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import posixpath
import re
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path

from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from seatrial.model.errors import UsageError
from seatrial.model.expectation import Expectation
from seatrial.model.report import Device, Report
from seatrial.ports.console import Console
from seatrial.ports.elf import MAGIC, Elf, read_elf
from seatrial.ports.files import disk_errors, sha256_file
from seatrial.stages.inspect.subject import Check, Found, run_check

CHUNK = 1 << 20

LONGEST = 32 << 20
"""Bytes of METADATA, WHEEL or RECORD that are read; a RECORD of vLLM's has half a million."""

MACHINES = {"x86_64": "X86_64", "aarch64": "AARCH64", "ppc64le": "PPC64", "s390x": "S390", "riscv64": "RISCV"}
"""Machine words of platform tags to those of ELF files."""

_PROMISE = re.compile(r"manylinux_(\d+)_(\d+)_")
_NEED = re.compile(r"GLIBC_(\d+)\.(\d+)")
_UNREAD = "not run: the archive cannot be read, see wheel-archive"


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


def inspect_wheel(path: Path, expected: Expectation | None, console: Console) -> Report:
    """Look at everything that can be known of a wheel without installing it.

    Args:
        path: the wheel file.
        expected: what it must be; without it the checks that compare are *not run*.

    Raises:
        UsageError: there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"there is no wheel {path}", do="correct the path")
    started = datetime.now(UTC)
    begun = time.monotonic()
    facts = _read(path, expected)
    cases = tuple(run_check(check, facts, console, compares=expected is not None) for check in WHEEL_CHECKS)
    return Report(
        kind="inspect",
        profile="inspect",
        subject=f"sha256:{sha256_file(path)}",
        subject_kind="wheel",
        platform=expected.platform if expected else "unknown",
        base=expected.base if expected else "unknown",
        device=Device(kind="none", name="none"),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - begun, 3),
        cases=cases,
    )


def _read(path: Path, expected: Expectation | None) -> WheelFacts:
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
        keep = block.startswith(MAGIC) or ".dist-info/" in name
        while block:
            digest.update(block)
            if keep:
                held.write(block)
            block = stream.read(CHUNK)
        if posixpath.basename(name) in ("METADATA", "WHEEL", "RECORD") and keep and held.tell() > LONGEST:
            facts.oversized.append(name)
        elif posixpath.basename(name) in ("METADATA", "WHEEL", "RECORD") and keep:
            held.seek(0)
            facts.texts[name] = held.read().decode(errors="replace")
        elif keep and ".dist-info/" not in name:
            facts.natives[name] = read_elf(held, info.file_size)
    facts.digests[name] = (digest.hexdigest(), info.file_size)


def check_archive(wheel: WheelFacts) -> Found:
    """Check that every member can be read and none would be written outside of the folder."""
    problems = [f"the archive is damaged: {wheel.broken}"] if wheel.broken else []
    for name, count in Counter(wheel.members).items():
        if count > 1:
            problems.append(f"{name} is in the archive {count} times")
        if name.startswith("/") or ".." in name.split("/") or "\\" in name or ":" in name.split("/")[0]:
            problems.append(f"{name!r} would be written outside of the folder that it is unpacked to")
    problems += [f"{name} is longer than {LONGEST >> 20} MiB and was not read" for name in wheel.oversized]
    if not wheel.broken and len(wheel.infos) != 1:
        problems.append(f"the archive has {len(wheel.infos)} dist-info folders: {', '.join(wheel.infos) or 'none'}")
    return Found(tuple(problems), {"members": len(wheel.members)})


def check_wheel_record(wheel: WheelFacts) -> Found:
    """Check that RECORD lists every member once, with its digest and size, and nothing else."""
    if wheel.broken:
        return Found(not_run=_UNREAD)
    text = wheel.text("RECORD")
    if text is None:
        return Found(("there is no RECORD",))
    problems: list[str] = []
    listed: set[str] = set()
    for row in csv.reader(io.StringIO(text)):
        if not row:
            continue
        name, digest, size = (*row, "", "")[:3]
        if name in listed:
            problems.append(f"RECORD lists {name} twice")
        listed.add(name)
        problems += _line_problems(wheel, name, digest, size)
    problems += [f"{name} is not in RECORD" for name in sorted(set(wheel.digests) - listed) if not _unlisted(name)]
    return Found(tuple(problems), {"lines": len(listed)})


def _line_problems(wheel: WheelFacts, name: str, digest: str, size: str) -> Iterator[str]:
    if name not in wheel.digests:
        yield f"RECORD lists {name}, which is not in the archive"
        return
    if name.endswith(".dist-info/RECORD"):
        return
    sha256, length = wheel.digests[name]
    told = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
    if digest != f"sha256={told}":
        yield f"{name} differs from RECORD" if digest.startswith("sha256=") else f"RECORD has no sha256 of {name}"
    elif size != str(length):
        yield f"{name} has {length} bytes, RECORD says {size or 'nothing'}"


def _unlisted(name: str) -> bool:
    return name.endswith((".dist-info/RECORD", ".dist-info/RECORD.jws", ".dist-info/RECORD.p7s"))


def check_identity(wheel: WheelFacts) -> Found:
    """Check that file name, dist-info folder and METADATA name one distribution and version."""
    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        return Found((str(error),))
    if wheel.broken:
        return Found(not_run=_UNREAD)
    problems: list[str] = []
    headers = HeaderParser().parsestr(wheel.text("METADATA") or "")
    told = (canonicalize_name(str(headers.get("Name", ""))), str(headers.get("Version", "")))
    if told != (name, str(version)):
        problems.append(f"METADATA says {told[0] or 'no name'} {told[1]}, the file name {name} {version}")
    if len(wheel.infos) == 1:
        folder_name, _, folder_version = wheel.infos[0].removesuffix(".dist-info").partition("-")
        if (canonicalize_name(folder_name), folder_version) != (name, str(version)):
            problems.append(f"the folder {wheel.infos[0]} does not belong to {name} {version}")
    if wheel.expected and (name, str(version)) != ("vllm", wheel.expected.vllm_version):
        problems.append(f"this is {name} {version}, the build makes vllm {wheel.expected.vllm_version}")
    return Found(tuple(problems), {"name": name, "version": str(version)})


def check_tags(wheel: WheelFacts) -> Found:
    """Check that the tags of the file name are those of WHEEL."""
    try:
        _, _, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        return Found((str(error),))
    if wheel.broken:
        return Found(not_run=_UNREAD)
    headers = HeaderParser().parsestr(wheel.text("WHEEL") or "")
    said = frozenset(tag for line in headers.get_all("Tag") or [] for tag in parse_tag(str(line)))
    measured = {"file_name": sorted(map(str, tags)), "wheel": sorted(map(str, said))}
    problems: list[str] = []
    if said != tags:
        problems.append(
            f"WHEEL says {', '.join(measured['wheel']) or 'no tag'}, the file name {', '.join(measured['file_name'])}"
        )
    pure = str(headers.get("Root-Is-Purelib", "")).lower()
    if wheel.natives and pure != "false":
        problems.append(f"WHEEL says Root-Is-Purelib: {pure or 'nothing'}, and {len(wheel.natives)} members are native")
    return Found(tuple(problems), measured)


def check_natives(wheel: WheelFacts) -> Found:
    """Check that native members can be read, fit the machine, and need no newer C library than the tags promise."""
    if wheel.broken:
        return Found(not_run=_UNREAD)
    try:
        platforms = {tag.platform for tag in parse_wheel_filename(wheel.name)[3]}
    except InvalidWheelFilename as error:
        return Found((str(error),))
    machines = {elf for word, elf in MACHINES.items() if any(platform.endswith(word) for platform in platforms)}
    promises = [(int(m[1]), int(m[2])) for platform in platforms if (m := _PROMISE.match(platform))]
    promise = min(promises, default=None)
    problems: list[str] = []
    floor: tuple[int, int] | None = None
    for name, elf in sorted(wheel.natives.items()):
        if elf.broken:
            problems.append(f"{name} is {elf.broken}")
            continue
        if elf.dynamic and elf.machine not in machines:
            problems.append(f"{name} is for {elf.machine}, the tags say {', '.join(sorted(platforms))}")
        need = max(((int(m[1]), int(m[2])) for _, v in elf.versions if (m := _NEED.match(v))), default=(0, 0))
        floor = max(floor or (0, 0), need)
        if promise is not None and need > promise:
            problems.append(f"{name} needs glibc {need[0]}.{need[1]}, the tags promise {promise[0]}.{promise[1]}")
    return Found(
        tuple(problems),
        {"natives": sorted(wheel.natives), "glibc_needed": list(floor or ()), "glibc_promised": list(promise or ())},
    )


def check_wheel_patched(wheel: WheelFacts) -> Found:
    """Check that what the fixes changed is what the wheel holds."""
    if wheel.broken:
        return Found(not_run=_UNREAD)
    assert wheel.expected is not None
    problems: list[str] = []
    for name, digest in sorted(wheel.expected.patched.items()):
        found = wheel.digests.get(name)
        if found is None:
            problems.append(f"{name} is patched in the build and missing in the wheel")
        elif found[0] != digest:
            problems.append(f"{name} is not the patched file: sha256 {found[0][:12]}, not {digest[:12]}")
    problems += [f"{n} was removed by a fix and is still here" for n in wheel.expected.removed if n in wheel.digests]
    return Found(tuple(problems), {"patched": sorted(wheel.expected.patched)})


WHEEL_CHECKS: tuple[Check[WheelFacts], ...] = (
    Check(
        "wheel-archive",
        "The archive can be read to its end, and its names are sound.",
        "Delete the file and make or fetch it again.",
        check_archive,
    ),
    Check(
        "wheel-record",
        "RECORD lists every member with its digest and size, and nothing else.",
        "Write RECORD after the last change.",
        check_wheel_record,
    ),
    Check(
        "wheel-identity",
        "File name, dist-info folder and METADATA name one distribution and version.",
        "Make the wheel again with one version throughout; never rename a wheel.",
        check_identity,
    ),
    Check("wheel-tags", "File name and WHEEL carry the same tags.", "Write WHEEL's tags from the name.", check_tags),
    Check(
        "wheel-natives",
        "Native members fit the machine and the C library that the tags promise.",
        "Compile on the promised system, or promise what the members need.",
        check_natives,
    ),
    Check(
        "wheel-patched",
        "The files that the fixes changed are the ones in the wheel.",
        "Make the wheel from the patched tree.",
        check_wheel_patched,
        needs_expectation=True,
    ),
)
"""In the order in which they run."""
