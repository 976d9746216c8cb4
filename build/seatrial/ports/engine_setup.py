"""Install and start Docker Engine, and the few programs the build needs, on Debian and Ubuntu."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.model.errors import CommandError, EngineError, SeatrialError
from seatrial.ports import process
from seatrial.ports.console import Console
from seatrial.ports.files import write_atomic

Probe = Callable[[], bool]
"""Tells whether the engine answers."""

ENGINE_PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "containerd", "iptables")
"""Debian's names since release 13; Ubuntu keeps the client in docker.io."""

NEWER_SUITE = {"bookworm": "trixie"}
"""Releases whose own engine is too old to build reproducibly, and the one that lends it; libc stays as it is."""

BORROWED = ("docker.io", "docker-cli", "docker-buildx", "containerd")
SOURCE_FILE = Path("etc/apt/sources.list.d/seatrial-engine.sources")
PIN_FILE = Path("etc/apt/preferences.d/seatrial-engine")
DAEMON_FILE = Path("etc/docker/daemon.json")
DAEMON_CONFIG = {"features": {"containerd-snapshotter": True}}
LOG_FILE = Path("/var/log/seatrial-dockerd.log")
START_SECONDS = 60
APT_SECONDS = 1800.0
APT_ENV = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides whether and how packages can be installed."""

    uid: int
    os_id: str
    codename: str
    pretty: str
    has_apt: bool


def read_machine(root: Path = Path("/")) -> Machine:
    """Read the machine's distribution from its os-release file; a missing file gives empty names."""
    values: dict[str, str] = {}
    try:
        text = (root / "etc/os-release").read_text(encoding="utf-8")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        values[key.strip()] = value.strip().strip('"')
    return Machine(
        uid=os.geteuid(),
        os_id=values.get("ID", ""),
        codename=values.get("VERSION_CODENAME", ""),
        pretty=values.get("PRETTY_NAME", "this system"),
        has_apt=shutil.which("apt-get") is not None,
    )


def by_hand(packages: Sequence[str]) -> str:
    """Return what to type on the machine to get packages."""
    return f"apt-get update && apt-get install --no-install-recommends {' '.join(packages)}"


def require_setup(machine: Machine, packages: Sequence[str], lack: str, *, allowed: bool) -> None:
    """Refuse to install where that is forbidden or impossible, saying exactly what to type.

    Raises:
        EngineError: setup is forbidden, this is not root, or this is neither Debian nor Ubuntu.
    """
    typed = by_hand(packages)
    if machine.os_id not in ("debian", "ubuntu") or not machine.has_apt:
        raise EngineError(
            lack,
            why=f"{machine.pretty} is neither Debian nor Ubuntu, so nothing is installed for you",
            do="install Docker Engine 26 or newer with buildx and git, or point DOCKER_HOST at an engine that has "
            "the containerd image store, and run the same again",
        )
    if not allowed:
        raise EngineError(lack, why="--no-setup forbids to install and start it", do=f"as root, type: {typed}")
    if machine.uid != 0:
        raise EngineError(
            lack, why="only root can install and start it", do=f"type: sudo sh -c '{typed}' (or run as root)"
        )


def parse_targets(text: str) -> list[tuple[str, str]]:
    """Parse `apt-get indextargets` lines of `uri|codename` into pairs, in apt's own order."""
    pairs: list[tuple[str, str]] = []
    for line in text.splitlines():
        uri, _, codename = line.strip().partition("|")
        if uri and codename and (uri, codename) not in pairs:
            pairs.append((uri, codename))
    return pairs


def borrowed_suite(targets: Sequence[tuple[str, str]], codename: str) -> tuple[str, str] | None:
    """Return (archive URI, newer suite) when this release borrows its engine from the next one.

    The archive is the one the machine itself uses for its own release; none is written down here.
    """
    newer = NEWER_SUITE.get(codename)
    if newer is None:
        return None
    for uri, name in targets:
        if name == codename:
            return uri, newer
    return None


def source_text(uri: str, suite: str) -> str:
    """Return an apt source in deb822 form for one suite of an archive."""
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    signed = f"Signed-By: {keyring}\n" if keyring.exists() else ""
    return f"Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: main\n{signed}"


def pin_text(suite: str) -> str:
    """Return apt preferences under which only the named packages come from the newer suite."""
    return (
        f"Package: *\nPin: release n={suite}\nPin-Priority: 1\n\n"
        f"Package: {' '.join(BORROWED)}\nPin: release n={suite}\nPin-Priority: 990\n"
    )


def _apt(console: Console, *arguments: str, why: str) -> None:
    argv = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-q", *arguments]
    console.line(f"  setup: {process.quoted(argv)}")
    try:
        process.run(argv, timeout=APT_SECONDS, env=APT_ENV)
    except CommandError as error:
        last = error.output.splitlines()[-1] if error.output else error.what
        raise EngineError(f"{why} failed", why=last, do=f"type: {process.quoted(argv)}") from None


def candidate(package: str) -> str | None:
    """Return the version that apt would install of a package, or None."""
    text = process.run(["apt-cache", "policy", package], timeout=60, env=APT_ENV).text
    for line in text.splitlines():
        key, _, value = line.strip().partition(": ")
        if key == "Candidate" and value != "(none)":
            return value
    return None


def install_tools(console: Console, programs: Mapping[str, str], *, allowed: bool) -> None:
    """Install the packages of programs that are missing.

    Args:
        programs: program name to the Debian package that holds it.

    Raises:
        EngineError: one is missing and may not or cannot be installed.
    """
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    packages = sorted({programs[program] for program in missing})
    names = ", ".join(missing)
    require_setup(read_machine(), packages, f"{names} not installed here", allowed=allowed)
    console.line(f"  setup: {names} not found; installing the distribution's packages")
    _apt(console, "update", why="reading the package lists")
    _apt(console, "install", "-y", "--no-install-recommends", *packages, why=f"installing {', '.join(packages)}")


def install_engine(console: Console, *, allowed: bool, root: Path = Path("/")) -> None:
    """Install Docker Engine with buildx from the distribution, its settings written first.

    Raises:
        EngineError: not allowed, not root, not Debian or Ubuntu, or apt failed.
    """
    machine = read_machine(root)
    require_setup(machine, ENGINE_PACKAGES, "no container engine answers and none is installed", allowed=allowed)
    console.line(f"  setup: no container engine here; installing {machine.pretty}'s packages")
    write_daemon_config(console, root)
    _apt(console, "update", why="reading the package lists")
    if candidate("docker-buildx") is None:
        _borrow(console, machine, root)
    packages = [package for package in ENGINE_PACKAGES if candidate(package) is not None]
    _apt(console, "install", "-y", "--no-install-recommends", *packages, why="installing Docker Engine")


def _borrow(console: Console, machine: Machine, root: Path) -> None:
    """Add the newer suite that lends the engine, pinned so that nothing else comes from it."""
    listed = process.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(CODENAME)", "Created-By: Packages"],
        timeout=60,
        env=APT_ENV,
    )
    found = borrowed_suite(parse_targets(listed.text), machine.codename)
    if found is None:
        raise EngineError(
            f"{machine.pretty} has no docker-buildx package",
            why="an engine that builds reproducibly needs it",
            do="install Docker Engine 26 or newer with buildx and run the same again",
        )
    uri, suite = found
    console.line(f"  setup: this release's engine is too old; taking {', '.join(BORROWED)} from {suite}, pinned")
    write_atomic(root / SOURCE_FILE, source_text(uri, suite).encode())
    write_atomic(root / PIN_FILE, pin_text(suite).encode())
    _apt(console, "update", why="reading the package lists")


def write_daemon_config(console: Console, root: Path = Path("/")) -> None:
    """Write the engine's settings where there are none; never touch a file that exists."""
    path = root / DAEMON_FILE
    if not path.exists():
        console.line(f"  setup: writing /{DAEMON_FILE} (containerd image store)")
        write_atomic(path, (json.dumps(DAEMON_CONFIG, indent=2) + "\n").encode())


def running_daemon(pid_file: Path = Path("/run/docker.pid")) -> int | None:
    """Return the process id of a dockerd that runs, whether it answers or not."""
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
        name = Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return pid if name == "dockerd" else None


def start_engine(console: Console, answers: Probe, *, allowed: bool) -> None:
    """Start the installed dockerd so that it outlives this command, and wait until it answers.

    Args:
        answers: tells whether the engine answers.

    Raises:
        EngineError: not allowed, not root, a dockerd runs and does not answer, or it did not come up.
    """
    if answers():
        return
    pid = running_daemon()
    if pid is not None and not wait_for(answers, 20):
        raise EngineError(
            f"dockerd runs (process {pid}) and does not answer",
            why="a second one would destroy the first one's networks",
            do="look into its log, or stop it, and run the same again",
        )
    if pid is not None:
        return
    _require_start(allowed)
    if Path("/run/systemd/system").is_dir():
        argv = ["systemctl", "enable", "--now", "docker"]
    else:
        # A shell only because the redirection has to happen inside the new session.
        argv = ["setsid", "--fork", "sh", "-c", f"exec dockerd </dev/null >>{LOG_FILE} 2>&1"]
    console.line(f"  setup: starting the engine: {process.quoted(argv)}")
    try:
        process.run(argv, timeout=START_SECONDS)
    except SeatrialError as error:
        raise EngineError(
            "the container engine could not be started", why=str(error), do=process.quoted(argv)
        ) from None
    if not wait_for(answers, START_SECONDS):
        raise EngineError(
            f"dockerd did not answer within {START_SECONDS} s", why=last_log_line(LOG_FILE), do=f"read {LOG_FILE}"
        )


def _require_start(allowed: bool) -> None:
    lack = "the container engine is installed and does not run"
    if not allowed:
        raise EngineError(lack, why="--no-setup forbids to start it", do="as root, type: dockerd &")
    if os.geteuid() != 0:
        raise EngineError(lack, why="only root can start it", do="type: sudo dockerd &")


def last_log_line(path: Path) -> str:
    """Return the last line of dockerd's log that says failed or error, else the last one."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    telling = [line for line in lines if "failed" in line or "rror" in line]
    return (telling or lines or [""])[-1]


def wait_for(answers: Probe, seconds: float) -> bool:
    """Ask until the engine answers or the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answers():
            return True
        time.sleep(0.3)
    return answers()
