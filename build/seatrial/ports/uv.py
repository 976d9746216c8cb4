"""Resolve requirements to exact wheels with uv, from the sources that the user's pip is configured with."""

from __future__ import annotations

import shutil
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from seatrial.model.errors import CommandError, FetchError, LockError
from seatrial.model.requirements import LockedWheel, LockRules
from seatrial.ports import process
from seatrial.ports.pip_config import PipConfig
from seatrial.ports.targets import Target, rank_of

RESOLVE_SECONDS = 600.0
PROBE_SECONDS = 15.0
"""Limit for asking PyTorch's own index, which many networks do not let through."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A wheel that a resolution chose, and where it lies. `place` may hold credentials and is never printed."""

    wheel: LockedWheel
    place: str


def uv_program() -> Path:
    """Return the uv binary: the one of this environment, else the first on PATH.

    Raises:
        CommandError: there is none.
    """
    found = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if found is None:
        raise CommandError("uv is not installed", why="it resolves and installs wheels", do="python -m pip install uv")
    return Path(found)


def index_flags(config: PipConfig) -> tuple[list[str], dict[str, str]]:
    """Return uv's flags and variables for the sources that pip is configured with."""
    flags = ["--index-strategy", "unsafe-best-match"]
    if config.index_urls:
        flags += ["--default-index", config.index_urls[0]]
        for url in config.index_urls[1:]:
            flags += ["--index", url]
    else:
        flags.append("--no-index")
    for place in config.find_links:
        flags += ["--find-links", place]
    for host in config.trusted_hosts:
        flags += ["--allow-insecure-host", host]
    variables = {"UV_HTTP_TIMEOUT": str(int(config.timeout))}
    if config.cert is not None:
        variables["SSL_CERT_DIR" if config.cert.is_dir() else "SSL_CERT_FILE"] = str(config.cert)
    if config.client_cert is not None:
        variables["SSL_CLIENT_CERT"] = str(config.client_cert)
    if config.proxy:
        variables |= {"HTTPS_PROXY": config.proxy, "HTTP_PROXY": config.proxy}
    return flags, variables


def resolve(
    requirements: Sequence[str],
    rules: LockRules,
    flags: Sequence[str],
    variables: Mapping[str, str],
    *,
    until: str | None,
    timeout: float = RESOLVE_SECONDS,
) -> tuple[Resolved, ...]:
    """Resolve requirements to exact wheels with uv.

    Args:
        until: moment up to which uploads count; None takes all, for sources that state no times.

    Raises:
        FetchError: there is no solution, or a source does not answer; holds uv's own explanation.
    """
    argv = [
        str(uv_program()),
        "pip",
        "compile",
        "-",
        "--no-config",
        "--format",
        "pylock.toml",
        "--no-header",
        "--no-annotate",
    ]
    argv += ["--only-binary", ":all:", "--python-version", rules.python]
    argv += ["--python-platform", rules.resolver_platform, *flags]
    if until is not None:
        argv += ["--exclude-newer", until]
    with tempfile.TemporaryDirectory(prefix="seatrial-lock-") as folder:
        output = Path(folder) / "pylock.toml"
        text = "".join(f"{line}\n" for line in requirements).encode()
        try:
            process.run([*argv, "--output-file", str(output)], timeout=timeout, env=variables, stdin=text)
        except CommandError as error:
            reason = " ".join(line.strip() for line in error.output.splitlines()[-6:])
            raise FetchError(
                "the run-time requirements cannot be resolved",
                why=reason or error.what,
                do="bound or leave out what upstream got wrong, in images/locks/",
            ) from None
        data = tomllib.loads(output.read_text(encoding="utf-8"))
        return tuple(best_wheel(package, rules) for package in data["packages"])


def best_wheel(package: Mapping[str, Any], rules: LockRules) -> Resolved:
    """Return the wheel of a resolved package that an installer would take on the image's machine.

    Raises:
        LockError: none fits.
    """
    ranks = {tag: place for place, tag in enumerate(Target(python=rules.python).tags())}
    fitting: list[tuple[int, Resolved]] = []
    for wheel in package.get("wheels", ()):
        place = wheel.get("url") or wheel.get("path") or ""
        file = unquote(wheel.get("name") or PurePosixPath(urlsplit(place).path).name)
        rank = rank_of(file, ranks)
        if rank is not None:
            size = wheel.get("size") or _size_of(place)
            name = canonicalize_name(package["name"])
            locked = LockedWheel(name, package["version"], file, size, wheel["hashes"]["sha256"])
            fitting.append((rank, Resolved(locked, place)))
    if not fitting:
        raise LockError(f"{package['name']} {package['version']} has no wheel for the image's machine")
    return min(fitting, key=lambda pair: (pair[0], pair[1].wheel.file))[1]


def _size_of(place: str) -> int:
    """Return the size of a wheel that lies on this machine; indexes state it themselves."""
    path = Path(unquote(urlsplit(place).path))
    if not path.is_file():
        raise LockError(f"{path.name}: its source states no size", do="use an index that does")
    return path.stat().st_size


def find_cpu_torch(torch: str, rules: LockRules, config: PipConfig) -> tuple[Resolved, str] | None:
    """Return torch's CPU build and where its bytes were seen, or None where no source has it.

    The configured sources are asked first, then PyTorch's own index, which uv knows by name. No moment is set:
    neither states upload times, and the version with its local part is exact.
    """
    flags, variables = index_flags(config)
    quick = {**variables, "UV_HTTP_TIMEOUT": "5", "UV_HTTP_CONNECT_TIMEOUT": "5", "UV_HTTP_RETRIES": "0"}
    tries = (
        ([*flags, "--no-deps"], variables, RESOLVE_SECONDS, "the configured sources"),
        (["--torch-backend", "cpu", "--no-deps"], quick, PROBE_SECONDS, "PyTorch's CPU index"),
    )
    for extra, environment, limit, seen in tries:
        try:
            found = resolve([f"torch=={torch}+cpu"], rules, extra, environment, until=None, timeout=limit)
        except FetchError:
            continue
        return found[0], seen
    return None
