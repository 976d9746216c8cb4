"""Files of an image: who may write them, who they run as, how much room they take, what was left behind."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from seatrial.ports.rootfs import Entry
from seatrial.stages.inspect.subject import Found, Image, want

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Leftover:
    """A kind of thing that serving does not need, by the paths that show it."""

    kind: str
    paths: re.Pattern[str]


def _leftover(kind: str, pattern: str) -> Leftover:
    return Leftover(kind, re.compile(pattern))


_TRIPLET = r"(?:[a-z0-9_]+-(?:linux|pc-linux)-[a-z0-9]+-)?"
_VERSION = r"(?:-?[0-9.]+)?"

LEFTOVERS = (
    _leftover("compiler", rf".*/s?bin/{_TRIPLET}(?:gcc|g\+\+|cpp|cc|c\+\+|clang|clang\+\+|gfortran){_VERSION}$"),
    _leftover("compiler", r".*/(?:cc1|cc1plus|lto1|collect2)$"),
    _leftover("compiler", r".*/bin/(?:nvcc|cicc|ptxas|hipcc|icpx|dpcpp|rustc|cargo|go)$"),
    _leftover("assembler or linker", rf".*/s?bin/{_TRIPLET}(?:as|ld|ld\.bfd|ld\.gold|ld\.lld)$"),
    _leftover("build tool", r".*/s?bin/(?:make|gmake|cmake|meson|automake|autoconf|dpkg-buildpackage|ccache|sccache)$"),
    _leftover("header", r"^/usr/(?:local/)?(?:include|cuda[^/]*/include)/.*\.(?:h|hpp|hh|cuh)$"),
    _leftover("Python header", r".*/include/python3\.\d+[a-z]*/Python\.h$"),
    _leftover("static library", r"^/usr/(?:local/)?lib/.*\.a$"),
    _leftover("package list", r"^/var/lib/apt/lists/.*[^/]$"),
    _leftover("package cache", r"^/var/cache/apt/.*\.(?:deb|bin)$"),
    _leftover("package cache", r"^/var/cache/(?:yum|dnf|zypp)/.*$"),
    _leftover("loader's build cache", r"^/var/cache/ldconfig/aux-cache$"),
    _leftover("debconf's old copy", r"^/var/cache/debconf/.*-old$"),
    _leftover("pip or uv cache", r".*/\.cache/(?:pip|uv|http|wheels|ccache|bazel)/.*$"),
    _leftover("cache of compiled kernels", r".*/\.cache/(?:vllm|torch|torch_extensions|triton|flashinfer)/.*$"),
    _leftover("cache of compiled kernels", r".*/\.(?:triton|aiter|nv)/.*$"),
    _leftover("download cache", r".*/\.cache/(?:huggingface|modelscope|matplotlib)/.*$"),
    _leftover("wheel or source archive", r".*\.(?:whl|tar\.gz|tgz|deb|rpm)$"),
    _leftover("log", r"^/var/log/.*$"),
    _leftover("temporary file", r"^/(?:var/)?tmp/.*$"),
    _leftover("build tree", r".*/(?:CMakeCache\.txt|build\.ninja|\.ninja_log)$"),
    _leftover("git history", r".*/\.git/HEAD$"),
)
"""Files are reported under the first kind that fits. What an installed wheel ships itself is that wheel's business."""

_BYTECODE = re.compile(r"^(?P<folder>.*)/__pycache__/(?P<name>[^/]+?)\.[a-z]+-\d+(?:\.opt-\d)?\.pyc$")

KNOWN_SET_ID = (
    r"^/usr/bin/(?:chage|chfn|chsh|expiry|gpasswd|mount|newgrp|passwd|su|umount)$",
    r"^/usr/sbin/unix_chkpwd$",
)
"""Set-id programs of Debian's smallest system."""


def check_world_writable(image: Image) -> Found:
    """Check that nobody but an owner or group can write, save in sticky folders for temporary files."""
    excused = image.excused("world-writable")
    problems: list[str] = []
    sticky: list[str] = []
    for entry in image.root.entries.values():
        if entry.kind not in ("file", "dir") or not entry.mode & 0o002:
            continue
        if entry.kind == "dir" and entry.mode & 0o1000:
            sticky.append(entry.path)
        elif not excused.allows(entry.path):
            problems.append(f"{entry.path} can be written by anyone (mode {entry.mode:04o})")
    return Found(tuple(problems), {"sticky": sorted(sticky), **excused.measured()})


def check_set_id(image: Image) -> Found:
    """Check that no program runs with more rights than its caller, save those that Debian brings."""
    excused = image.excused("set-id")
    known = re.compile("|".join(KNOWN_SET_ID))
    problems: list[str] = []
    present: list[str] = []
    for entry in image.root.files():
        if not entry.mode & 0o6000 or not entry.mode & 0o111:
            continue
        real = image.root.resolve(entry.path) or entry.path
        if known.match(real):
            present.append(real)
        elif not excused.allows(real):
            owner = f"uid {entry.uid}" if entry.mode & 0o4000 else f"gid {entry.gid}"
            problems.append(f"{real} runs as {owner} whoever starts it (mode {entry.mode:04o})")
    return Found(tuple(problems), {"known": sorted(present), **excused.measured()})


def check_size(image: Image) -> Found:
    """Compare the image's files with those of its installed wheels.

    A wheel's bytecode counts as the wheel's, whoever compiled it: pip writes it into RECORD, uv does not.
    """
    expected, owned = want(image), image.python.owners()
    wheels = bytecode = total = 0
    for entry in image.root.files():
        total += entry.size
        if _source(entry.path) in owned:
            bytecode += entry.size
        elif entry.path in owned:
            wheels += entry.size
    over = total - wheels - bytecode
    measured = {
        "total_mb": round(total / MB, 1),
        "wheels_mb": round(wheels / MB, 1),
        "bytecode_mb": round(bytecode / MB, 1),
        "over_wheels_mb": round(over / MB, 1),
        "budget_mb": expected.over_wheels_mb,
        "layers_mb": round(image.facts.layer_bytes / MB, 1),
    }
    if over <= expected.over_wheels_mb * MB:
        return Found((), measured)
    largest = ", ".join(f"{path} {size / MB:.0f} MB" for path, size in _largest(image))
    return Found(
        (
            f"the image holds {over / MB:.0f} MB beyond its wheels and may hold {expected.over_wheels_mb} MB; "
            f"largest outside of them: {largest}",
        ),
        measured,
    )


def check_leftovers(image: Image) -> Found:
    """Look for what a build needs and a server does not."""
    excused = image.excused("leftovers")
    owned = image.python.owners()
    kinds: dict[str, list[Entry]] = {}
    for entry in image.root.entries.values():
        kind = "" if entry.path in owned else _kind(entry)
        if kind and not excused.allows(entry.path):
            kinds.setdefault(kind, []).append(entry)
    problems = [
        f"{len(entries)} {kind} file{'s' if len(entries) > 1 else ''}, {sum(e.size for e in entries) / MB:.1f} MB: "
        + ", ".join(sorted(entry.path for entry in entries)[:3])
        for kind, entries in sorted(kinds.items())
    ]
    return Found(tuple(problems), {"kinds": {k: len(v) for k, v in sorted(kinds.items())}, **excused.measured()})


def _kind(entry: Entry) -> str:
    if entry.kind not in ("file", "link") or (entry.kind == "file" and not entry.size and not entry.first):
        return ""
    return next((row.kind for row in LEFTOVERS if row.paths.match(entry.path)), "")


def _source(path: str) -> str:
    """Return the module that a file of bytecode was compiled from; nothing for another file."""
    match = _BYTECODE.match(path)
    return f"{match['folder']}/{match['name']}.py" if match else ""


def _largest(image: Image) -> Iterator[tuple[str, int]]:
    """Yield the folders, three names deep, that hold most of what no wheel owns."""
    owned = image.python.owners()
    folders: dict[str, int] = {}
    for entry in image.root.files():
        if entry.path not in owned and _source(entry.path) not in owned:
            folder = posixpath.dirname("/" + "/".join(entry.path.split("/")[1:5]))
            folders[folder] = folders.get(folder, 0) + entry.size
    yield from sorted(folders.items(), key=lambda item: -item[1])[:4]
