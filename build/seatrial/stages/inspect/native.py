"""Native closure: every library that a native file needs is found in the image, by the loader's own rules."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from packaging.utils import canonicalize_name

from seatrial.ports.elf import Elf
from seatrial.stages.inspect.environment import Distribution, Environment
from seatrial.stages.inspect.loader import Loader, Missing, Process
from seatrial.stages.inspect.subject import Found, Image

_MODULE = re.compile(r"\.(?:abi3|cpython-[^/]+)\.so$")
"""Extension modules of Python; a package may well ship plain libraries for other machines."""

ELF_MACHINES = {"amd64": "X86_64", "arm64": "AARCH64", "ppc64le": "PPC64", "s390x": "S390", "riscv64": "RISCV"}
"""OCI architecture words to ELF machine names."""


@dataclass(frozen=True, slots=True)
class Preload:
    """Libraries that a process already holds when another distribution's files are loaded."""

    provider: str
    """Distribution whose import loads them."""
    modules: str
    """Shell pattern, below the site folder, of the files that this import loads."""
    why: str


PRELOADS = (
    Preload(
        "torch",
        "torch/_C.*.so",
        "extensions built on torch carry no path to it: their packages import torch first, and the loader then finds "
        "its libraries by soname among those already loaded",
    ),
    Preload(
        "apache-tvm-ffi",
        "tvm_ffi/lib/libtvm_ffi.so",
        "packages built on it import tvm_ffi, which loads this library, before their own bindings",
    ),
    Preload(
        "triton",
        "triton/_C/libtriton.so",
        "plugins are loaded by libtriton itself, so it is there already",
    ),
)
"""Holds only for distributions that require the provider, and for what the provider itself really loads."""


def check_native_closure(image: Image) -> Found:
    """Load every native file on paper and report what is missing, and for whom."""
    loader = Loader(image.root, machine_of(image), image.facts.environment)
    excused = image.excused("native-closure")
    objects = dict(loader.objects())
    problems = [*_broken(image), *_preload_problems(image, loader), *_no_interpreter(image, objects)]
    by_provider = {rule.provider: provided(loader, image.python, rule).names for rule in PRELOADS}
    used: dict[str, set[str]] = {rule.provider: set() for rule in PRELOADS}
    requires = Requires(image.python)
    seen: set[tuple[str, str]] = set()
    for top in Links(loader, objects).lacking():
        owner = requires.owner(top)
        helpers = [rule for rule in PRELOADS if owner and requires.reaches(owner, rule.provider)]
        already: set[str] = set().union(*(by_provider[rule.provider] for rule in helpers))
        for rule in helpers:
            unfound = {name for name in objects[top].needed if loader.find(top, name) is None}
            used[rule.provider] |= by_provider[rule.provider] & unfound
        for lost in loader.load(top, already).missing:
            if (lost.needed_by, lost.soname) in seen:
                continue
            seen.add((lost.needed_by, lost.soname))
            if not excused.allows(f"{lost.needed_by} -> {lost.soname}"):
                problems.append(_sentence(image, loader, lost))
    return Found(
        tuple(problems),
        {
            "native_files": len(objects),
            "other": sum(1 for e in image.root.files() if e.elf is not None) - len(objects),
            "preloaded": [
                {"by": rule.provider, "why": rule.why, "names": sorted(used[rule.provider])}
                for rule in PRELOADS
                if used[rule.provider]
            ],
            **excused.measured(),
        },
    )


def machine_of(image: Image) -> str:
    """Return the ELF word of the image's machine, empty for one that is not known."""
    return ELF_MACHINES.get(image.facts.machine, "")


class Links:
    """Who may load whom among an image's native files."""

    def __init__(self, loader: Loader, objects: Mapping[str, Elf]) -> None:
        self._loader, self._objects = loader, objects
        self._parents: dict[str, set[str]] = {}
        self._unfound: set[str] = set()
        by_name: dict[str, set[str]] = {}
        for path, elf in objects.items():
            for name in {posixpath.basename(path), elf.soname}:
                by_name.setdefault(name, set()).add(path)
        for path, elf in objects.items():
            for name in elf.needed:
                found = loader.find(path, name)
                if found is None:
                    self._unfound.add(path)
                for child in by_name.get(name, set()) if found is None else {found} & objects.keys():
                    self._parents.setdefault(child, set()).add(path)

    def lacking(self) -> Iterator[str]:
        """Yield the files to load where something is not found: those with an unfound need, or their chains' starts.

        A link of a chain may itself be found only through the RPATH of whoever loads the chain, so that libraries
        without a path of their own are loaded from their package's extension and not by themselves.
        """
        yield from self._above(self._unfound)

    def starts(self) -> Iterator[str]:
        """Yield every file that nothing else loads, and one of each ring: loading them loads all."""
        yield from self._above(set(self._objects))

    def _above(self, paths: set[str]) -> Iterator[str]:
        tops: set[str] = set()
        for path in paths:
            seen, queue = {path}, [path]
            for at in queue:  # grows while it is walked
                above = self._parents.get(at, set()) - seen
                if not self._parents.get(at):
                    tops.add(at)
                seen |= above
                queue.extend(above)
            if not tops & seen:  # a ring of libraries that need each other
                tops.add(path)
        reached: set[str] = set().union(*(self._loader.load(top).files for top in tops))
        yield from sorted(tops | (paths - reached))


def provided(loader: Loader, python: Environment, rule: Preload) -> Process:
    """Return what a process holds, names and files, once it has imported a provider; nothing without the provider."""
    provider = python.named(rule.provider)
    process = Process()
    if provider is None:
        return process
    for path, _ in loader.objects():
        if fnmatchcase(path, f"{provider.site}/{rule.modules}"):
            loaded = loader.load(path)
            process.names |= loaded.names
            process.files |= loaded.files
    return process


def _broken(image: Image) -> Iterator[str]:
    machine = machine_of(image)
    sites = tuple(f"{site}/" for site in image.python.sites)
    for entry in image.root.files():
        if entry.elf is None or entry.first:
            continue
        if entry.elf.broken:
            yield f"{entry.path} is {entry.elf.broken}"
        elif (
            entry.elf.dynamic
            and entry.elf.machine != machine
            and _MODULE.search(entry.path)
            and entry.path.startswith(sites)
        ):
            yield f"{entry.path} is for {entry.elf.machine}, the image for {machine or image.facts.machine}"


def _no_interpreter(image: Image, objects: Mapping[str, Elf]) -> Iterator[str]:
    for path in objects:
        elf = objects[path]
        if elf.interpreter and image.root.at(elf.interpreter) is None:
            yield f"{path} asks for the loader {elf.interpreter}, which the image does not hold"


def _preload_problems(image: Image, loader: Loader) -> Iterator[str]:
    for name in image.facts.environment.get("LD_PRELOAD", "").replace(":", " ").split():
        found = image.root.at(name) if "/" in name else next(iter(loader.cache.get(name, ())), None)
        if found is None:
            yield f"LD_PRELOAD names {name}, which the image does not hold; every command in it would complain"


def _sentence(image: Image, loader: Loader, lost: Missing) -> str:
    through = f", loaded for {lost.loaded_for}" if lost.loaded_for != lost.needed_by else ""
    elsewhere = next((path for path in image.root.entries if path.endswith(f"/{lost.soname}")), "")
    hint = (
        f"it lies at {elsewhere}, where the loader does not look for this file"
        if elsewhere
        else f"no file of that name is in the image (searched: {', '.join(loader.searched(lost.needed_by))})"
    )
    return f"{lost.needed_by} needs {lost.soname}{through}: {hint}"


class Requires:
    """Who owns a file, and whose import its owner can count on."""

    def __init__(self, python: Environment) -> None:
        self._python = python
        self._owners = python.owners()
        self._reach: dict[str, set[str]] = {}

    def owner(self, path: str) -> Distribution | None:
        """Return the distribution whose RECORD names a file."""
        return next(iter(self._owners.get(path, ())), None)

    def reaches(self, owner: Distribution, provider: str) -> bool:
        """Tell whether a distribution requires a provider, through whomever."""
        if owner.name not in self._reach:
            self._reach[owner.name] = self._all(owner)
        return provider in self._reach[owner.name]

    def _all(self, owner: Distribution) -> set[str]:
        names, queue = {owner.name}, [owner]
        for one in queue:  # grows while it is walked
            for need in one.requirements:
                name = canonicalize_name(need.name)
                applies = need.marker is None or need.marker.evaluate({**self._python.markers})
                if applies and name not in names:
                    names.add(name)
                    if (found := self._python.named(name)) is not None:
                        queue.append(found)
        return names
