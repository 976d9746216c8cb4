"""Installed Python distributions: equal to the lock, complete, and each file owned by one of them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from seatrial.stages.inspect.environment import Distribution, Environment
from seatrial.stages.inspect.subject import Excused, Found, Image, want


def check_distributions(image: Image) -> Found:
    """Compare names and versions with the lock: nothing extra, nothing missing, nothing twice."""
    expected = {str(canonicalize_name(name)): version for name, version in want(image).distributions.items()}
    excused = image.excused("distributions")
    installed: dict[str, list[Distribution]] = {}
    for one in image.python.distributions:
        installed.setdefault(one.name, []).append(one)
    problems: list[str] = []
    for name, ones in sorted(installed.items()):
        if len(ones) > 1:
            places = ", ".join(f"{one.version} in {one.site}" for one in ones)
            problems.append(f"{name} is installed {len(ones)} times: {places}")
        for one in ones[:1]:
            if not one.has_metadata:
                problems.append(f"{name} has no METADATA in {one.info}: what it is can only be guessed from the folder")
            if name not in expected and not excused.allows(f"{name} {one.version}"):
                problems.append(f"{name} {one.version} is installed and not in the lock ({one.info})")
            elif name in expected and one.version != expected[name]:
                problems.append(f"{name} is {one.version}, the lock says {expected[name]}")
    missing = sorted(set(expected) - set(installed))
    problems += [f"{name} {expected[name]} is in the lock and not installed" for name in missing]
    return Found(tuple(problems), {"installed": len(installed), "locked": len(expected), **excused.measured()})


def check_requirements(image: Image) -> Found:
    """Check that what each distribution requires is installed, in a version that it accepts."""
    python = image.python
    excused = image.excused("requirements")
    extras = _extras(python)
    problems: list[str] = []
    count = 0
    for one in python.distributions:
        problems += [f"{one.name} has a requirement that cannot be read: {line!r}" for line in one.bad_requirements]
        for need in _applying(one.requirements, extras.get(one.name, frozenset()), python.markers):
            count += 1
            trouble = _unmet(python, need)
            if trouble and not excused.allows(f"{one.name}: {canonicalize_name(need.name)}"):
                problems.append(f"{one.name} {one.version} requires {need}: {trouble}")
    if python.vllm is None:
        problems.insert(0, "no distribution in the image brings vllm/")
    return Found(
        tuple(problems),
        {"distributions": len(python.distributions), "requirements": count, **excused.measured()},
    )


def check_module_owners(image: Image) -> Found:
    """Check that no file is claimed by two distributions with other bytes than the one that is there."""
    excused = image.excused("module-owners")
    problems: list[str] = []
    shared = 0
    for path, owners in sorted(image.python.owners().items()):
        if len(owners) < 2 or path.endswith(".pyc"):
            continue
        shared += 1
        digests = {line.sha256 for one in owners for line in one.record if line.path == path}
        names = ", ".join(sorted({one.name for one in owners}))
        if len(digests) > 1 and not excused.allows(f"{path}: {names}"):
            problems.append(f"{path} belongs to {names}, which ship different files there; the last one wins")
    return Found(tuple(problems), {"shared_identical": shared - len(problems), **excused.measured()})


def check_vllm_record(image: Image) -> Found:
    """Check every file of vLLM against its own RECORD, and that no other Python file stands among them."""
    vllm = image.python.vllm
    if vllm is None or not vllm.has_record:
        return Found(("no distribution with a RECORD brings vllm/",))
    excused = image.excused("vllm-record")
    problems = list(_record_problems(image, vllm, excused))
    listed = {line.path for line in vllm.record}
    for entry in image.root.files():
        stray = entry.path.startswith(f"{vllm.site}/vllm/") and entry.path not in listed
        if stray and not entry.path.endswith(".pyc") and not excused.allows(entry.path):
            problems.append(f"{entry.path} stands among vLLM's files and is not in its RECORD")
    return Found(tuple(problems), {"files": len(listed), "version": vllm.version, **excused.measured()})


def check_records(image: Image) -> Found:
    """Check every file of every other distribution against its RECORD."""
    excused = image.excused("records")
    problems: list[str] = []
    files = 0
    without: list[str] = []
    for one in image.python.distributions:
        if one is image.python.vllm:
            continue
        if not one.has_record:
            without.append(one.name)
            continue
        files += len(one.record)
        problems += _record_problems(image, one, excused)
    return Found(tuple(problems), {"files": files, "without_record": without, **excused.measured()})


def _record_problems(image: Image, one: Distribution, excused: Excused) -> Iterator[str]:
    for line in one.record:
        if not line.sha256 or line.path.endswith(".pyc"):
            continue  # bytecode is made anew at installation; its source is checked
        entry = image.root.at(line.path)
        if entry is None:
            trouble = f"{line.path} is in the RECORD of {one.name} and missing"
        elif not entry.sha256:
            trouble = f"{line.path} was not read" if line.size else ""
        elif _record_form(entry.sha256) != line.sha256:
            trouble = f"{line.path} differs from the RECORD of {one.name} {one.version}"
        else:
            continue
        if trouble and not excused.allows(line.path):
            yield trouble


def _record_form(digest: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()


def _unmet(python: Environment, need: Requirement) -> str:
    found = python.named(canonicalize_name(need.name))
    if found is None:
        return "it is not installed"
    try:
        fits = need.specifier.contains(found.version, prereleases=True)
    except InvalidVersion:
        return f"{found.version!r} is not a version"
    return "" if fits else f"{found.version} is installed"


def _extras(python: Environment) -> dict[str, frozenset[str]]:
    """Return the extras that installed distributions ask of each other, to the end of the chain."""
    asked: dict[str, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for one in python.distributions:
            for need in _applying(one.requirements, asked.get(one.name, frozenset()), python.markers):
                name = canonicalize_name(need.name)
                more = asked.get(name, frozenset()) | need.extras
                if more != asked.get(name, frozenset()):
                    asked[name] = more
                    changed = True
    return asked


def _applying(needs: Iterable[Requirement], extras: frozenset[str], markers: dict[str, str]) -> Iterator[Requirement]:
    for need in needs:
        if need.marker is None or any(need.marker.evaluate({**markers, "extra": extra}) for extra in ("", *extras)):
            yield need
