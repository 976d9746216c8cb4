"""Checks of a wheel as a wheel: archive, RECORD, names, tags, natives, patched files."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from email.parser import HeaderParser

from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from seatrial.model.expectation import recorded_digest
from seatrial.stages.inspect import wheel_facts
from seatrial.stages.inspect.subject import Found
from seatrial.stages.inspect.wheel_facts import UNREAD, WheelFacts

MACHINES = {"x86_64": "X86_64", "aarch64": "AARCH64", "ppc64le": "PPC64", "s390x": "S390", "riscv64": "RISCV"}
"""Machine words of platform tags to those of ELF files."""

OLD_PROMISES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
"""C library versions behind the names that PEP 600 replaced."""

_PROMISE = re.compile(r"manylinux_(\d+)_(\d+)_")
_NEED = re.compile(r"GLIBC_(\d+)\.(\d+)")


def check_archive(wheel: WheelFacts) -> Found:
    """Check that every member can be read and none would be written outside of the folder."""
    problems = [f"the archive is damaged: {wheel.broken}"] if wheel.broken else []
    for name, count in Counter(wheel.members).items():
        if count > 1:
            problems.append(f"{name} is in the archive {count} times")
        if name.startswith("/") or ".." in name.split("/") or "\\" in name or ":" in name.split("/")[0]:
            problems.append(f"{name!r} would be written outside of the folder that it is unpacked to")
    problems += [f"{name} is longer than {wheel_facts.LONGEST >> 20} MiB and was not read" for name in wheel.oversized]
    if not wheel.broken and len(wheel.infos) != 1:
        problems.append(f"the archive has {len(wheel.infos)} dist-info folders: {', '.join(wheel.infos) or 'none'}")
    return Found(tuple(problems), {"members": len(wheel.members)})


def check_wheel_record(wheel: WheelFacts) -> Found:
    """Check that RECORD lists every member once, with its digest and size, and nothing else."""
    if wheel.broken:
        return Found(not_run=UNREAD)
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
        return Found(not_run=UNREAD)
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
        return Found(not_run=UNREAD)
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
        return Found(not_run=UNREAD)
    try:
        platforms = {tag.platform for tag in parse_wheel_filename(wheel.name)[3]}
    except InvalidWheelFilename as error:
        return Found((str(error),))
    machines = {elf for word, elf in MACHINES.items() if any(platform.endswith(word) for platform in platforms)}
    promises = [(int(m[1]), int(m[2])) for platform in platforms if (m := _PROMISE.match(platform))]
    promises += [floor for word, floor in OLD_PROMISES.items() for platform in platforms if platform.startswith(word)]
    promise = min(promises, default=None)
    musl = any(platform.startswith("musllinux") for platform in platforms)
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
        if musl and need > (0, 0):
            problems.append(f"{name} needs glibc {need[0]}.{need[1]}, the tags promise musl")
        if promise is not None and need > promise:
            problems.append(f"{name} needs glibc {need[0]}.{need[1]}, the tags promise {promise[0]}.{promise[1]}")
    return Found(
        tuple(problems),
        {"natives": sorted(wheel.natives), "glibc_needed": list(floor or ()), "glibc_promised": list(promise or ())},
    )


def check_wheel_patched(wheel: WheelFacts) -> Found:
    """Check that the wheel holds what the build made: the files that fixes changed, and all others."""
    if wheel.broken:
        return Found(not_run=UNREAD)
    assert wheel.expected is not None
    problems: list[str] = []
    for name, digest in sorted(wheel.expected.patched.items()):
        found = wheel.digests.get(name)
        if found is None:
            problems.append(f"{name} is patched in the build and missing in the wheel")
        elif found[0] != digest:
            problems.append(f"{name} is not the patched file: sha256 {found[0][:12]}, not {digest[:12]}")
    problems += [f"{n} was removed by a fix and is still here" for n in wheel.expected.removed if n in wheel.digests]
    promised = wheel.expected.records.get("vllm")
    rows = [(*row, "", "")[:2] for row in csv.reader(io.StringIO(wheel.text("RECORD") or "")) if row]
    found_digest = recorded_digest((name, digest.removeprefix("sha256=")) for name, digest in rows)
    if promised is not None and found_digest != promised:
        problems.append("RECORD lists other files or digests than the wheel of the build")
    return Found(tuple(problems), {"patched": sorted(wheel.expected.patched), "compared_whole": promised is not None})
