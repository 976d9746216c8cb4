"""The Python environment that serves: which distributions it holds and which files are theirs."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.parser import HeaderParser

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from seatrial.ports.images import ImageFacts
from seatrial.ports.rootfs import RootFs

_SITE = re.compile(r"^(?P<prefix>.*)/lib(?:64)?/python(?P<version>3(?:\.\d+)?)/(?:site|dist)-packages$")

_VERSION_FILES = (
    "/vllm/_version.py",
    *(f"-packages/{name}/version.py" for name in ("torch", "torchvision", "torchaudio", "torchcodec")),
)
"""Files in which packages say their version, commit and accelerator."""

MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}
"""OCI architecture words to those of `uname -m`."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One line of a RECORD: the file's absolute path, and its digest and size where the line has them."""

    path: str
    sha256: str
    """URL-safe base64 without padding, as RECORD writes it; empty for files made at installation."""
    size: int | None


@dataclass(frozen=True, slots=True)
class Distribution:
    """One installed distribution."""

    name: str
    """Normalised."""
    version: str
    site: str
    """Folder that it is installed in."""
    info: str
    """Its `.dist-info` folder, or `.egg-info` folder or file."""
    requirements: tuple[Requirement, ...] = ()
    bad_requirements: tuple[str, ...] = ()
    """Requirement lines that do not follow the standard."""
    record: tuple[Recorded, ...] = ()
    has_record: bool = False
    has_metadata: bool = True


@dataclass(frozen=True, slots=True)
class Environment:
    """The distributions that the serving interpreter sees."""

    interpreter: str
    """Command that runs it inside the image."""
    sites: tuple[str, ...]
    distributions: tuple[Distribution, ...]
    markers: dict[str, str] = field(default_factory=dict)
    """Marker environment of the image, for requirements."""
    _owners: dict[str, list[Distribution]] = field(default_factory=dict, repr=False, compare=False)

    def named(self, name: str) -> Distribution | None:
        """Return a distribution by its normalised name."""
        return next((one for one in self.distributions if one.name == name), None)

    @property
    def vllm(self) -> Distribution | None:
        """Return the distribution that brings vLLM: `vllm`, or a repackaging that starts with `vllm-`."""
        exact = self.named("vllm")
        return exact or next((one for one in self.distributions if _brings_vllm(one)), None)

    def owners(self) -> dict[str, list[Distribution]]:
        """Return for each recorded path the distributions whose RECORD names it."""
        if not self._owners:  # several checks ask, and it takes a moment
            for one in self.distributions:
                for line in one.record:
                    self._owners.setdefault(line.path, []).append(one)
        return self._owners


def keeps(path: str, size: int) -> bool:
    """Tell whether a file's bytes are needed to know the Python environment."""
    if size > 16 << 20:
        return False
    folder, name = posixpath.split(path)
    if folder.endswith((".dist-info", ".egg-info")):
        return name in ("METADATA", "RECORD", "PKG-INFO", "WHEEL", "direct_url.json", "installed-files.txt")
    return name.endswith((".egg-info", ".pth")) or name == "pyvenv.cfg" or path.endswith(_VERSION_FILES)


def python_environment(root: RootFs, facts: ImageFacts) -> Environment:
    """Find the environment that holds vLLM and read it; without vLLM it is every Python folder in the image."""
    infos = [path for path in root.entries if _is_info(root, path)]
    everything = [one for one in (_distribution(root, path) for path in infos) if one is not None]
    home = next((one.site for one in everything if _brings_vllm(one)), None)
    prefix, version = "", ""
    if home is not None and (match := _SITE.match(home)):
        prefix, version = match["prefix"], match["version"]
    sites = _visible(root, {one.site for one in everything}, home, prefix)
    return Environment(
        interpreter=_interpreter(root, prefix, facts),
        sites=sites,
        distributions=tuple(sorted((one for one in everything if one.site in sites), key=lambda one: one.name)),
        markers=_markers(root, prefix, version, facts.machine),
    )


def _brings_vllm(one: Distribution) -> bool:
    return (one.name == "vllm" or one.name.startswith("vllm-")) and any(
        line.path == f"{one.site}/vllm/__init__.py" for line in one.record
    )


def _is_info(root: RootFs, path: str) -> bool:
    name = posixpath.basename(path)
    if not name.endswith((".dist-info", ".egg-info")):
        return False
    return root.entries[path].kind in ("dir", "file") and posixpath.basename(posixpath.dirname(path)) in (
        "site-packages",
        "dist-packages",
    )


def _distribution(root: RootFs, info: str) -> Distribution | None:
    site = posixpath.dirname(info)
    text = next((t for t in (root.text(f"{info}/METADATA"), root.text(f"{info}/PKG-INFO"), root.text(info)) if t), None)
    if text is None:
        # A folder without metadata still counts: an installer would trip over it.
        stem = posixpath.basename(info).rsplit(".", 1)[0]
        name, _, version = stem.partition("-")
        lines = tuple(_record(site, root.text(f"{info}/RECORD") or ""))
        return Distribution(
            canonicalize_name(name), version, site, info, record=lines, has_record=bool(lines), has_metadata=False
        )
    headers = HeaderParser().parsestr(text)
    requirements: list[Requirement] = []
    bad: list[str] = []
    for line in headers.get_all("Requires-Dist") or []:
        try:
            requirements.append(Requirement(str(line)))
        except InvalidRequirement:
            bad.append(str(line))
    record = root.text(f"{info}/RECORD")
    return Distribution(
        canonicalize_name(str(headers.get("Name", ""))),
        str(headers.get("Version", "")),
        site,
        info,
        tuple(requirements),
        tuple(bad),
        tuple(_record(site, record)) if record is not None else (),
        record is not None,
    )


def _record(site: str, text: str) -> Iterator[Recorded]:
    for row in csv.reader(io.StringIO(text)):
        if not row or not row[0]:
            continue
        digest = row[1] if len(row) > 1 else ""
        size = int(row[2]) if len(row) > 2 and row[2].isdigit() else None
        method, _, value = digest.partition("=")
        yield Recorded(posixpath.normpath(posixpath.join(site, row[0])), value if method == "sha256" else "", size)


def _visible(root: RootFs, sites: set[str], home: str | None, prefix: str) -> tuple[str, ...]:
    """Return the folders on the interpreter's path: a venv shuts out the system's unless it says otherwise."""
    if home is None:
        return tuple(sorted(sites))
    settings = root.text(f"{prefix}/pyvenv.cfg")
    if settings is not None and not re.search(r"(?im)^include-system-site-packages\s*=\s*true", settings):
        return tuple(sorted(site for site in sites if site.startswith(f"{prefix}/lib")))
    others = ("/usr/lib/", "/usr/local/lib/", f"{prefix}/lib")
    return tuple(sorted(site for site in sites if site == home or site.startswith(others)))


def _interpreter(root: RootFs, prefix: str, facts: ImageFacts) -> str:
    """Return the environment's own Python, else the first one on the image's PATH."""
    searched = facts.environment.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
    for folder in ([f"{prefix}/bin"] if prefix else []) + searched:
        for name in ("python3", "python"):
            if folder.startswith("/") and root.at(f"{folder}/{name}") is not None:
                return f"{folder}/{name}"
    return "python3"


def _markers(root: RootFs, prefix: str, version: str, machine: str) -> dict[str, str]:
    settings = root.text(f"{prefix}/pyvenv.cfg") or ""
    full = re.search(r"(?im)^version(?:_info)?\s*=\s*(3\.\d+\.\d+)", settings)
    if version.count(".") == 0 and (found := _library_version(root)):
        version = found
    markers = {key: str(value) for key, value in default_environment().items()}
    markers.update(
        python_version=version or markers["python_version"],
        python_full_version=full[1] if full else f"{version}.0" if version else markers["python_full_version"],
        platform_machine=MACHINES.get(machine, machine),
        platform_system="Linux",
        sys_platform="linux",
        os_name="posix",
        platform_release="",
        platform_version="",
        extra="",
    )
    return markers


def _library_version(root: RootFs) -> str:
    """Return the version of the system's own Python, for Debian's folder that is named after `python3` alone."""
    names = (posixpath.basename(path) for path in root.entries if path.startswith("/usr/lib/python3."))
    return next((name.removeprefix("python") for name in names if re.fullmatch(r"python3\.\d+", name)), "")
