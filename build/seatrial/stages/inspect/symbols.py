"""Symbols: what a native file asks of its libraries is in the ones that it gets in this image.

A library that is found may still be another build: an extension compiled against one torch and installed beside
another, or a binding whose kernel was left out, is linked to all that it needs and lacks a name in it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from seatrial.ports.demangle import can_demangle, demangle
from seatrial.ports.elf import Elf
from seatrial.ports.elf_symbols import symbol_key
from seatrial.stages.inspect.loader import Loader
from seatrial.stages.inspect.native import PRELOADS, Links, Requires, machine_of, provided
from seatrial.stages.inspect.subject import Found, Image

SHOWN = 3
"""Symbols that a sentence names; the rest of a file's is a count."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a kind of symbol is defined, so that a message can say what to look at."""

    pattern: re.Pattern[str]
    """Over the demangled name."""
    where: str


_OF = r"^(?:(?:typeinfo|vtable|VTT|guard variable|typeinfo name) for )?"

HOMES = (
    Home(re.compile(_OF + r"c10::(?:cuda|hip|xpu)::"), "torch's libc10_cuda.so, libc10_hip.so or libc10_xpu.so"),
    Home(re.compile(_OF + r"c10::"), "libc10.so of the torch that the file was built on"),
    Home(re.compile(_OF + r"(?:at|torch|caffe2)::"), "libtorch of the torch that the file was built on"),
    Home(re.compile(r"^(?:aoti_)?torch_"), "libtorch of a newer torch (its stable C interface)"),
    Home(re.compile(r"^_?Py[A-Z_]"), "the interpreter, of another version than this one"),
    Home(re.compile(r"^(?:cuda|cu)[A-Z]"), "libcudart.so or the driver's libcuda.so.1"),
    Home(re.compile(r"^(?:cublas|cudnn|nccl|cusparse|cusolver|nvrtc)"), "NVIDIA's library of that name"),
    Home(re.compile(r"^hip[A-Z]"), "libamdhip64.so"),
    Home(re.compile(_OF + r"std::|^__cxa|^__gxx|^operator (?:new|delete)"), "a newer libstdc++.so.6"),
)
"""First one that fits; a name that none fits belongs to the file's own sources, of which one was not compiled."""

SYSTEM = re.compile(r"^(?:/usr)?/(?:lib|lib64|libexec|bin|sbin)/(?!.*-packages/)")
"""Where a distribution's own packages lie; their plugins ask names of the program that loads them, not of a library."""

OWN = "its own sources: the binding is there and the kernel was not compiled"


def check_symbols(image: Image) -> Found:
    """Look for every undefined symbol in the libraries that a process holds once the file is loaded."""
    loader = Loader(image.root, machine_of(image), image.facts.environment)
    excused = image.excused("symbols")
    objects = dict(loader.objects())
    lost = _unbound(image, loader, objects)
    problems = [
        _sentence(path, objects[path], names, loaded)
        for path, (names, loaded) in sorted(lost.items())
        if not excused.allows(path)
    ]
    measured = {
        "native_files": len(objects),
        "symbols": sum(len(elf.symbols.wanted) for elf in objects.values() if elf.symbols),
        "without_symbols": sum(1 for elf in objects.values() if elf.symbols is None),
        "demangled": can_demangle(),
        "lost": {path: [demangle(name) for name in names] for path, (names, _) in sorted(lost.items())},
        **excused.measured(),
    }
    return Found(tuple(problems), measured)


def check_symbol_versions(image: Image) -> Found:
    """Check that every library defines the symbol versions that the files which load it ask for."""
    loader = Loader(image.root, machine_of(image), image.facts.environment)
    excused = image.excused("symbol-versions")
    problems: list[str] = []
    newest = ""
    for path, elf in loader.objects():
        for soname, version in elf.versions:
            newest = max(newest, version, key=_glibc)
            found = loader.find(path, soname)
            symbols = image.root.entries[found].elf.symbols if found is not None else None  # type: ignore[union-attr]
            if symbols is None or not symbols.versions or version in symbols.versions:
                continue  # a missing library is native-closure's; one without versions takes every name
            if not excused.allows(f"{path} -> {soname} {version}"):
                best = max(symbols.versions, key=_numbers)
                problems.append(f"{path} needs {version} of {soname}, and {found} has nothing newer than {best}")
    return Found(tuple(problems), {"newest_glibc_needed": newest if _glibc(newest) else "", **excused.measured()})


def _unbound(image: Image, loader: Loader, objects: Mapping[str, Elf]) -> dict[str, tuple[list[str], str]]:
    """Return per file the symbols that nothing brings in any process that loads it, and for whom it was loaded."""
    requires = Requires(image.python)
    python = _interpreter_files(image, loader)
    preloaded = {rule.provider: provided(loader, image.python, rule) for rule in PRELOADS}
    bases: dict[frozenset[str], frozenset[int]] = {}
    lost: dict[str, tuple[list[str], str]] = {}
    bound: set[str] = set()
    for top in Links(loader, objects).starts():
        if SYSTEM.match(top):
            continue
        owner = requires.owner(top)
        helpers = [r.provider for r in PRELOADS if owner and requires.reaches(owner, r.provider)]
        already = [preloaded[name].names for name in helpers if owner is None or name != owner.name]
        process = loader.load(top, set().union(*already))
        if process.missing:  # native-closure says it, unless the provider's own import comes first
            process = loader.load(top, set().union(*(preloaded[name].names for name in helpers)))
        if process.missing:
            continue
        others = frozenset(set().union(*(preloaded[name].files for name in helpers)) | python) - process.files
        if others not in bases:
            bases[others] = _brought(objects, others)
        own = [objects[path].symbols for path in process.files]
        for path in process.files:
            symbols = objects[path].symbols
            if symbols is None or path in bound:
                continue
            names = [
                name
                for name in symbols.wanted
                if (key := symbol_key(name)) not in bases[others]
                and not any(one is not None and key in one.brought for one in own)
            ]
            if not names:
                bound.add(path)
                lost.pop(path, None)
            elif path not in lost:
                lost[path] = (names, top)
    return lost


def _brought(objects: Mapping[str, Elf], files: Iterable[str]) -> frozenset[int]:
    tables = (elf.symbols for path in files if (elf := objects.get(path)) is not None)
    return frozenset().union(*(symbols.brought for symbols in tables if symbols is not None))


def _interpreter_files(image: Image, loader: Loader) -> set[str]:
    """Return what a process of the serving interpreter holds before it imports anything."""
    entry = image.root.at(image.python.interpreter)
    if entry is None or entry.elf is None or not entry.elf.dynamic:
        return set()
    return loader.load(entry.first or entry.path).files


def _sentence(path: str, elf: Elf, names: list[str], loaded: str) -> str:
    through = f" (loaded for {posixpath.basename(loaded)})" if loaded != path else ""
    shown = "; ".join(f"{demangle(name)} [{_home(name)}]" for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{path}{through} asks for {len(names)} symbols that none of its libraries has: {shown}{more}"


def _home(name: str) -> str:
    text = demangle(name)
    return next((f"should be in {home.where}" for home in HOMES if home.pattern.search(text)), f"should be in {OWN}")


def _numbers(version: str) -> tuple[str, tuple[int, ...]]:
    return version.partition("_")[0], tuple(int(part) for part in re.findall(r"\d+", version))


def _glibc(version: str) -> tuple[int, ...]:
    return _numbers(version)[1] if version.startswith("GLIBC_2") else ()
