"""Who a module's name belongs to, and what else decides which file Python takes for it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

from seatrial.stages.inspect.environment import Distribution
from seatrial.stages.inspect.subject import Found, Image

CODE = (".py", ".so")

START_FILES = ("sitecustomize.py", "usercustomize.py")
"""Modules that Python imports at every start when they are there."""


@dataclass(slots=True)
class _Name:
    """One top-level name in one site folder: which files make it importable, and who brings them."""

    folders: dict[str, set[str]] = field(default_factory=dict)
    """Distribution to the paths of the files that it puts into the folder of that name."""
    modules: dict[str, str] = field(default_factory=dict)
    """Distribution to the file that is a module of that name."""
    roots: set[str] = field(default_factory=set)
    """Distributions that bring the folder's `__init__`, which makes it one package and no shared namespace."""


def check_import_names(image: Image) -> Found:
    """Check that no importable name is brought by two distributions, of which Python would take one."""
    excused = image.excused("import-names")
    names = _names(image)
    problems = [
        sentence
        for (site, name), entry in sorted(names.items())
        for owners, sentence in _conflicts(site, name, entry)
        if not excused.allows(f"{name}: {owners}")
    ]
    homes: dict[str, list[str]] = {}
    for site, name in names:
        homes.setdefault(name, []).append(site)
    problems += [
        f"{name} can be imported from {' and '.join(sorted(sites))}; the first on Python's path wins"
        for name, sites in sorted(homes.items())
        if len(sites) > 1
        and any(names[site, name].roots or names[site, name].modules for site in sites)
        and not excused.allows(f"{name}: {', '.join(sorted(sites))}")
    ]
    return Found(tuple(problems), {"names": len(homes), **excused.measured()})


def check_import_paths(image: Image) -> Found:
    """Check that nothing but the installed distributions decides what an import finds."""
    excused = image.excused("import-paths")
    owned = image.python.owners()
    tops = {name for _, name in _names(image)}
    problems = [
        sentence
        for place, sentence in (*_path_files(image, owned, tops), *_path_variables(image, tops))
        if not excused.allows(place)
    ]
    problems += [sentence for place, sentence in _strays(image, owned) if not excused.allows(place)]
    files = [path for path in image.root.entries if path.endswith(".pth") and _in_site(image, path)]
    return Found(tuple(problems), {"path_files": sorted(files), **excused.measured()})


def _names(image: Image) -> dict[tuple[str, str], _Name]:
    """Return site folder and importable name to what makes it."""
    names: dict[tuple[str, str], _Name] = {}
    for one in image.python.distributions:
        for line in one.record:
            inside = line.path.removeprefix(f"{one.site}/")
            if inside == line.path or not inside.endswith(CODE):
                continue
            top, _, rest = inside.partition("/")
            if top.endswith((".dist-info", ".egg-info", ".libs", ".data")) or top.startswith("__"):
                continue
            entry = names.setdefault((one.site, top.split(".", 1)[0]), _Name())
            if not rest:
                entry.modules[one.name] = line.path
                continue
            entry.folders.setdefault(one.name, set()).add(line.path)
            if rest.split(".", 1)[0] == "__init__":
                entry.roots.add(one.name)
    return names


def _conflicts(site: str, name: str, entry: _Name) -> Iterator[tuple[str, str]]:
    """Yield the distributions that are in each other's way, and a sentence about it."""
    for module, path in sorted(entry.modules.items()):
        for other in sorted(entry.roots - {module}):
            yield (
                f"{module}, {other}",
                f"{name} is brought by {module} as {path} and by {other} as {site}/{name}/, which Python takes",
            )
    if len(entry.modules) > 1 and len(set(entry.modules.values())) > 1:
        owners = ", ".join(sorted(entry.modules))
        yield owners, f"{name} is brought by {owners} as different files: {', '.join(sorted(entry.modules.values()))}"
    for guest in sorted(set(entry.folders) - entry.roots if entry.roots else ()):
        hosts = ", ".join(sorted(entry.roots))
        files = sorted(entry.folders[guest])
        yield (
            f"{guest}, {hosts}",
            f"{guest} puts {len(files)} files into {name}, the package of {hosts}: {files[0]}",
        )


def _in_site(image: Image, path: str) -> bool:
    return posixpath.dirname(path) in image.python.sites


def _path_files(image: Image, owned: dict[str, list[Distribution]], tops: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the `.pth` and start files that nobody owns, and those that lead to other code."""
    for path in sorted(image.root.entries):
        if not _in_site(image, path):
            continue
        name = posixpath.basename(path)
        if name in START_FILES and path not in owned:
            yield path, f"{path} runs at every start of Python, and no RECORD lists it"
        if not name.endswith(".pth"):
            continue
        if path not in owned and (image.root.text(path) or "").strip() and not _venv_own(name):
            yield path, f"{path} is read at every start of Python, and no RECORD lists it"
        for line in (image.root.text(path) or "").splitlines():
            folder = line.strip()
            if not folder or folder.startswith(("#", "import ", "import\t")):
                continue
            full = posixpath.normpath(posixpath.join(posixpath.dirname(path), folder))
            for top in _held(image, full, tops):
                yield path, f"{path} puts {full} on Python's path, which holds another {top}"


def _strays(image: Image, owned: dict[str, list[Distribution]]) -> Iterator[tuple[str, str]]:
    """Yield code beside vLLM that nobody's RECORD lists, one sentence a top-level name."""
    vllm = image.python.vllm
    if vllm is None:
        return
    found: dict[str, list[str]] = {}
    for path, entry in image.root.entries.items():
        inside = path.removeprefix(f"{vllm.site}/")
        if inside != path and entry.kind in ("file", "link") and inside.endswith(CODE) and path not in owned:
            top = inside.partition("/")[0]
            if top != "vllm" and top not in START_FILES:  # vllm-record says it, and so does the check above
                found.setdefault(top, []).append(path)
    for top, paths in sorted(found.items()):
        yield f"{vllm.site}/{top}", f"{len(paths)} modules that no RECORD lists can be imported as {top}: {min(paths)}"


def _venv_own(name: str) -> bool:
    """Tell the file that virtualenv and uv write themselves; its code only guards `distutils`."""
    return name in ("_virtualenv.pth", "distutils-precedence.pth")


def _path_variables(image: Image, tops: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what PYTHONPATH and the working folder, the first place for `python -m`, put before the site folder."""
    environment = image.facts.environment
    for folder in environment.get("PYTHONPATH", "").split(":"):
        for top in _held(image, folder, tops) if folder else ():
            yield "variable PYTHONPATH", f"PYTHONPATH names {folder}, which holds another {top}: it goes first"
    if home := environment.get("PYTHONHOME", ""):
        yield "variable PYTHONHOME", f"PYTHONHOME is {home}: every Python in the image takes its library from there"
    folder = image.facts.working_dir or "/"
    for top in _held(image, folder, tops):
        yield "working folder", f"WORKDIR {folder} holds another {top}, which `python -m` and `python -c` take"


def _held(image: Image, folder: str, tops: set[str]) -> Iterator[str]:
    if folder in image.python.sites:
        return
    for top in sorted(tops):
        base = posixpath.join(folder, top)
        if image.root.at(f"{base}/__init__.py") is not None or image.root.at(f"{base}.py") is not None:
            yield top
