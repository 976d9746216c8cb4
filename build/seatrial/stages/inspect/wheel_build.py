"""Checks of what a wheel was built from and for: accelerator, commit, names, requirements."""

from __future__ import annotations

import re
from email.parser import HeaderParser

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from seatrial.ports.demangle import can_demangle, demangle
from seatrial.ports.elf_symbols import symbol_key
from seatrial.stages.inspect.builds import kind_faults, kinds_needed
from seatrial.stages.inspect.identity import assigned, release
from seatrial.stages.inspect.subject import Excused, Found
from seatrial.stages.inspect.wheel_facts import UNREAD, VERSION_FILE, WheelFacts

_GLOBAL = re.compile(r"^_Z(?:L?\d)")
"""Start of a mangled function without a namespace: vLLM's bindings call their kernels so, its libraries' are in one."""

_OWN = re.compile(r"^_ZNK?(?:4vllm|5marlin|6Marlin|3moe|8vllm_moe|8cutlass_|7cpu_ops|8cpu_attn)")
"""Start of one in a namespace of vLLM's own sources."""

FOREIGN_NAMES = re.compile(r"^_Z(?:L?\d+)(?:cu[A-Z]|cuda|cublas|nvrtc|hip|omp_|GOMP|__)")
"""Functions without a namespace that belong to other libraries' C++ headers."""


def check_wheel_symbols(wheel: WheelFacts) -> Found:
    """Look for functions of the wheel's own sources that a native member asks for and none of them defines."""
    if wheel.broken:
        return Found(not_run=UNREAD)
    tables = {name: elf.symbols for name, elf in wheel.natives.items() if elf.symbols is not None}
    brought = frozenset().union(*(symbols.brought for symbols in tables.values()))
    problems: list[str] = []
    asked = 0
    for name, symbols in sorted(tables.items()):
        own = [s for s in symbols.wanted if (_GLOBAL.match(s) or _OWN.match(s)) and not FOREIGN_NAMES.match(s)]
        asked += len(own)
        lost = [s for s in own if symbol_key(s) not in brought]
        if lost:
            more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            shown = "; ".join(demangle(s) for s in lost[:3])
            problems.append(f"{name} asks for {len(lost)} functions that no member defines: {shown}{more}")
    measured = {"natives": sorted(tables), "own_names": asked, "demangled": can_demangle()}
    return Found(tuple(problems), measured)


def check_wheel_accelerator(wheel: WheelFacts) -> Found:
    """Check that version, native members and the platform's device name one accelerator."""
    try:
        _, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        return Found((str(error),))
    if wheel.broken:
        return Found(not_run=UNREAD)
    needed = kinds_needed(wheel.natives)
    device = wheel.expected.device if wheel.expected else ""
    return Found(tuple(kind_faults(str(version), needed, device)), {"needs": needed, "device": device})


def check_wheel_version(wheel: WheelFacts) -> Found:
    """Check that METADATA and the module say one version, and the module the base's commit."""
    if wheel.broken:
        return Found(not_run=UNREAD)
    told = str(HeaderParser().parsestr(wheel.text("METADATA") or "").get("Version", ""))
    text = wheel.texts.get(VERSION_FILE)
    if text is None:
        return Found((f"there is no {VERSION_FILE}, so that nobody can ask the module for its version",))
    module, commit = assigned(text, "version"), assigned(text, "commit_id")
    problems: list[str] = []
    if module is None:
        problems.append(f"{VERSION_FILE} does not say a version")
    elif release(module) != release(told):
        problems.append(f"{VERSION_FILE} says {module}, METADATA says {told}")
    expected = wheel.expected
    if expected is not None and commit is not None and not expected.commit.startswith(commit.removeprefix("g")):
        problems.append(f"{VERSION_FILE} says commit {commit}, the base is {expected.commit[:12]}")
    return Found(tuple(problems), {"metadata": told, "module": module, "commit": commit})


def check_wheel_names(wheel: WheelFacts) -> Found:
    """Check that the wheel brings one module, the one that it is named after."""
    if wheel.broken:
        return Found(not_run=UNREAD)
    tops: dict[str, str] = {}
    for member in wheel.members:
        top, _, rest = member.partition("/")
        if not top.endswith((".dist-info", ".data", ".libs")) and member.endswith((".py", ".so", ".pth")):
            tops.setdefault(top.split(".", 1)[0] if not rest else top, member)
    own = wheel.name.partition("-")[0].partition("_")[0].lower()
    problems = [
        f"{member} would be importable as {top}, beside the module {own}"
        for top, member in sorted(tops.items())
        if top != own
    ]
    if own not in tops:
        problems.append(f"the wheel brings no module {own}")
    return Found(tuple(problems), {"names": sorted(tops)})


def check_wheel_requirements(wheel: WheelFacts) -> Found:
    """Check what METADATA requires against the lock."""
    if wheel.broken:
        return Found(not_run=UNREAD)
    assert wheel.expected is not None
    excused = Excused("requirements", wheel.expected.allowances)
    locked = {str(canonicalize_name(name)): version for name, version in wheel.expected.distributions.items()}
    problems: list[str] = []
    lines = HeaderParser().parsestr(wheel.text("METADATA") or "").get_all("Requires-Dist") or []
    markers = {
        **{key: str(value) for key, value in default_environment().items()},
        "platform_machine": wheel.expected.machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "extra": "",
    }
    for line in map(str, lines):
        try:
            need = Requirement(line)
        except InvalidRequirement:
            problems.append(f"METADATA has a requirement that cannot be read: {line!r}")
            continue
        name = str(canonicalize_name(need.name))
        if (need.marker is not None and not need.marker.evaluate(markers)) or excused.allows(f"vllm: {name}"):
            continue
        if name not in locked:
            problems.append(f"METADATA requires {need}, and the lock has no {name}")
        elif not need.specifier.contains(locked[name], prereleases=True):
            problems.append(f"METADATA requires {need}, and the lock has {name} {locked[name]}")
    return Found(tuple(problems), {"requirements": len(lines), **excused.measured()})
