"""Resolve an image's run-time requirements and write them down with hashes."""

from __future__ import annotations

import email
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.model.errors import LockError
from seatrial.model.requirements import LockedWheel, LockRules, belongs_to_torch, lock_text
from seatrial.model.values import parse_toml
from seatrial.ports.console import Console
from seatrial.ports.files import read_committed, write_atomic
from seatrial.ports.pip_config import PipConfig
from seatrial.ports.uv import find_cpu_torch, index_flags, resolve

MARKERS = {
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "extra": "",
}


@dataclass(frozen=True, slots=True)
class WrittenLocks:
    """The lock files of one base and platform. A torch lock is None where that build's bytes were never seen."""

    rest: Path
    torch_index: Path | None
    torch_cpu: Path | None


def load_rules(path: Path) -> LockRules:
    """Read a platform's rules; LockError when they are missing or malformed."""
    name = f"images/locks/{path.name}"
    text = read_committed(path, name, do="say there how the platform's requirements resolve")
    return parse_toml(LockRules, text, name)


def requirements_of(metadata: bytes, rules: LockRules, base: str) -> list[str]:
    """Return what a wheel requires on the image's machine, without torch and what is left out, bounds laid on.

    Args:
        metadata: METADATA of the base's wheel for this platform.

    Raises:
        LockError: the metadata requires nothing, so it is not the wheel's.
    """
    dropped = {entry.name for entry in rules.left_out} | {"torch"}
    environment = {**MARKERS, "python_version": rules.python, "python_full_version": f"{rules.python}.0"}
    wanted: list[str] = []
    for line in email.message_from_bytes(metadata).get_all("Requires-Dist") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        if canonicalize_name(requirement.name) not in dropped:
            requirement.marker = None
            wanted.append(str(requirement))
    if not wanted:
        raise LockError("the base's wheel requires nothing", why="its METADATA names no requirement")
    wanted += [bound.requirement for bound in rules.bounds if base in bound.bases]
    return sorted(set(wanted))


def lock_requirements(
    metadata: bytes, base: str, platform: str, torch: str, *, locks: Path, config: PipConfig, console: Console
) -> WrittenLocks:
    """Write the run-time locks of a base on a platform: one for all but torch, one for each build of torch.

    Args:
        metadata: METADATA of the base's wheel for the platform.
        torch: exact torch release without a local part.
        locks: the folder `images/locks`.

    Raises:
        FetchError: no solution, or a source does not answer.
        LockError: the platform's rules are missing or malformed.
    """
    rules = load_rules(locks / f"{platform}.toml")
    moment = rules.moment(base)
    wanted = requirements_of(metadata, rules, base)
    flags, variables = index_flags(config)
    # A build with a local part outranks the plain one wherever a source has both.
    own = f"torch=={torch},!={torch}+cpu"
    console.detail(f"resolving {len(wanted)} requirements and torch {torch}, nothing newer than {moment}")
    dropped = {entry.name for entry in rules.left_out}
    found = [
        entry.wheel
        for entry in resolve([*wanted, own], rules, flags, variables, until=moment)
        if entry.wheel.name not in dropped
    ]
    head = (
        f"vLLM {base} on {platform}; written by: nox -s lock-requirements -- {platform} --base {base}",
        f"Python {rules.python}, {rules.resolver_platform}, nothing uploaded after {moment}.",
        f"Left out (images/locks/{platform}.toml says why): {', '.join(sorted(dropped))}.",
    )
    rest = tuple(wheel for wheel in found if not belongs_to_torch(wheel.name))
    ours = tuple(wheel for wheel in found if belongs_to_torch(wheel.name))
    stem = f"{base}-{platform}"
    paths = WrittenLocks(
        rest=_write(locks / f"{stem}.txt", rest, head, console),
        torch_index=_write(
            locks / f"{stem}.torch-index.txt", ours, (*head, "torch as the configured index builds it."), console
        ),
        torch_cpu=None,
    )
    cpu = find_cpu_torch(torch, rules, config)
    if cpu is None:
        console.fallback(f"no source has torch {torch}+cpu, so no lock is written for PyTorch's CPU build")
        return paths
    entry, seen = cpu
    line = f"torch as PyTorch builds it for CPUs; its bytes were seen in: {seen}."
    written = _write(locks / f"{stem}.torch-cpu.txt", (entry.wheel,), (*head, line), console)
    return WrittenLocks(paths.rest, paths.torch_index, written)


def _write(path: Path, wheels: tuple[LockedWheel, ...], header: tuple[str, ...], console: Console) -> Path:
    write_atomic(path, lock_text(wheels, header).encode())
    console.detail(f"{path.name}: {len(wheels)} wheels, {sum(wheel.size for wheel in wheels) / 1e6:.0f} MB")
    return path
