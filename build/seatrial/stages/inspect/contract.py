"""The run contract: labels, user, entrypoint, HOME, health check and environment of an image."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator

from seatrial.ports.images import ImageFacts
from seatrial.ports.rootfs import Entry, RootFs
from seatrial.stages.inspect.subject import Found, Image, want

OCI = "org.opencontainers.image."

STANDARD_LABELS = tuple(f"{OCI}{name}" for name in ("title", "version", "revision", "source", "created", "licenses"))
"""Labels of the OCI annotation rules that an image has to carry, whatever their value."""

ENDING_SIGNALS = ("SIGTERM", "SIGINT", "15", "2")
"""Signals on which vLLM's server ends in order."""

SHELL_WORDS = (
    "test",
    "[",
    "exit",
    "true",
    "false",
    ":",
    "exec",
    "if",
    "!",
    "(",
    "{",
    "export",
    "cd",
    "command",
    "echo",
)
"""Words that a shell knows itself."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

STEERS = re.compile(
    r"(?:VLLM_(?:TARGET|ATTENTION|PLUGINS|USE|ENABLE|DISABLE|ALLOW|CPU|ROCM|XPU|WORKER|V1|FLASH|BATCH)|PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|HSA|HIP|ROCM|AITER|GPU|CUDA|NVIDIA|NCCL|FLASHINFER|TRITON|SYCL|ZE|"
    r"ONEAPI|CCL|OMP|KMP|MKL|LD|PYTHON|TRANSFORMERS|HF)_?\w*$"
)
"""Variables that choose devices, kernels, modules or libraries."""

MAX_SHEBANGS = 4
"""Interpreters followed from a script; the kernel stops there too."""


def check_labels(image: Image) -> Found:
    """Compare labels with what was built, and look for the standard ones."""
    expected, labels = want(image).labels, image.facts.labels
    problems: list[str] = []
    for name, value in sorted(expected.items()):
        if name not in labels:
            problems.append(f"label {name} is missing (should be {value!r})")
        elif labels[name] != value:
            problems.append(f"label {name} says {labels[name]!r}, the build says {value!r}")
    problems += [f"label {name} is missing or empty" for name in STANDARD_LABELS if not labels.get(name)]
    return Found(tuple(problems), {"labels": len(labels), "compared": len(expected)})


def check_run_contract(image: Image) -> Found:
    """Check how the image starts, as whom, and that any user can."""
    facts = image.facts
    problems = [*_user(image), *_entrypoint(image), *_repeats(facts), *_home(image), *_health(image)]
    if facts.stop_signal and facts.stop_signal not in ENDING_SIGNALS:
        problems.append(f"STOPSIGNAL is {facts.stop_signal}, on which the server does not end in order")
    if image.expected is not None:
        if facts.entrypoint != image.expected.entrypoint:
            asked = shlex.join(image.expected.entrypoint)
            problems.append(f"ENTRYPOINT is {shlex.join(facts.entrypoint) or 'empty'}, not {asked}")
        if (facts.stop_signal or "SIGTERM") != image.expected.stop_signal:
            problems.append(f"STOPSIGNAL is {facts.stop_signal or 'not set'}, not {image.expected.stop_signal}")
    measured = {
        "user": facts.user,
        "entrypoint": list(facts.entrypoint),
        "command": list(facts.command),
        "health": list(facts.health),
        "home": facts.environment.get("HOME", ""),
        "stop_signal": facts.stop_signal,
    }
    return Found(tuple(problems), measured)


def check_environment(image: Image) -> Found:
    """Check the variables that the platform's row sets, and that no others steer what runs."""
    problems: list[str] = []
    excused = image.excused("environment")
    for name, value in sorted(want(image).environment.items()):
        found = image.facts.environment.get(name)
        if found is None:
            problems.append(f"variable {name} is not set (should be {value!r})")
        elif found != value:
            problems.append(f"variable {name} is {found!r}, the platform's row says {value!r}")
    expected = want(image).environment
    problems += [
        f"variable {name} is set, steers vLLM or what it stands on, and no row names it"
        for name in sorted(image.facts.environment)
        if STEERS.match(name) and name not in expected and not excused.allows(f"variable {name}")
    ]
    return Found(tuple(problems), {"variables": len(image.facts.environment), **excused.measured()})


def _user(image: Image) -> Iterator[str]:
    name = image.facts.user.partition(":")[0]
    if name in ("", "root") or (name.isdigit() and int(name) == 0):
        yield "the image runs as root"
    elif not name.isdigit() and _account(image.root, name) is None:
        yield f"USER is {name}, and /etc/passwd does not know that name"
    elif (account := _account(image.root, name)) is not None and account[0] == 0:
        yield f"USER is {name}, which is root by its number"


def _account(root: RootFs, name: str) -> tuple[int, str] | None:
    """Return number and home of an account."""
    for line in (root.text("/etc/passwd") or "").splitlines():
        parts = line.split(":")
        if len(parts) >= 6 and name in (parts[0], parts[2]) and parts[2].isdigit():
            return int(parts[2]), parts[5]
    return None


def _entrypoint(image: Image) -> Iterator[str]:
    if not image.facts.entrypoint:
        yield "there is no ENTRYPOINT"
        return
    path: str | None = _program(image, image.facts.entrypoint[0])
    if path is None:
        yield f"ENTRYPOINT starts {image.facts.entrypoint[0]}, which the image does not hold"
        return
    for _ in range(MAX_SHEBANGS):
        if trouble := closed_to_others(image.root, path):
            yield f"ENTRYPOINT runs {path}, and a user other than its owner cannot: {trouble}"
            return
        entry = image.root.at(path)
        if entry is None or not entry.shebang:
            return
        words = entry.shebang.split()
        wanted = words[1] if posixpath.basename(words[0]) == "env" and len(words) > 1 else words[0]
        found = _program(image, wanted)
        if found is None:
            yield f"{path} asks for the interpreter {wanted}, which the image does not hold"
            return
        path = found


def _repeats(facts: ImageFacts) -> Iterator[str]:
    """Yield where CMD or ENTRYPOINT says the same words again: the program takes them for its first arguments."""
    entry, command = facts.entrypoint, facts.command
    plain = tuple(posixpath.basename(word) for word in entry)
    for count in range(len(entry), 0, -1):
        if tuple(posixpath.basename(word) for word in command[:count]) == plain[-count:]:
            again = shlex.join(command[:count])
            yield f"CMD begins with {again}, which ENTRYPOINT says already: the container runs {again} twice"
            return
    for count in range(len(plain) // 2, 0, -1):
        if plain[:count] == plain[count : 2 * count]:
            yield f"ENTRYPOINT says {shlex.join(entry[:count])} twice"
            return


def _health(image: Image) -> Iterator[str]:
    """Yield why the health check is missing or cannot run: a program that is not there makes it fail for ever."""
    kind, *words = image.facts.health or ("NONE",)
    if kind == "NONE":
        yield "there is no HEALTHCHECK"
        return
    if kind == "CMD-SHELL":
        if image.root.at("/bin/sh") is None:
            yield "HEALTHCHECK is a line for /bin/sh, which the image does not hold"
        try:
            words = shlex.split(" ".join(words))
        except ValueError:
            words = []
    name = next((word for word in words if not _ASSIGNMENT.match(word)), "")
    if name and name not in SHELL_WORDS and _program(image, name) is None:
        yield f"HEALTHCHECK runs {name}, which the image does not hold"


def _program(image: Image, name: str) -> str | None:
    if "/" in name:
        full = posixpath.join(image.facts.working_dir or "/", name)
        return full if image.root.at(full) is not None else None
    default = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    for folder in image.facts.environment.get("PATH", default).split(":"):
        if image.root.at(f"{folder}/{name}") is not None:
            return f"{folder}/{name}"
    return None


def closed_to_others(root: RootFs, path: str) -> str:
    """Say why a user without any right of owner or group cannot run a file; an empty string when they can."""
    real = root.resolve(path)
    if real is None:
        return "it does not exist"
    if not root.entries[real].mode & 0o001:
        return f"{real} has mode {root.entries[real].mode:04o}"
    for start in {path, real}:
        folder = posixpath.dirname(start)
        while True:
            entry = root.at(folder)
            if entry is not None and not entry.mode & 0o001:
                return f"the folder {folder} has mode {entry.mode:04o}"
            if folder == "/":
                break
            folder = posixpath.dirname(folder)
    return ""


def _home(image: Image) -> Iterator[str]:
    home = image.facts.environment.get("HOME", "")
    if not home:
        yield "HOME is not set, so under another UID it is /, which cannot be written"
        return
    entry = image.root.at(home)
    if entry is None or entry.kind != "dir":
        yield f"HOME is {home}, which is not a folder of the image"
    elif not _writable_by_any(entry):
        yield f"HOME {home} has mode {entry.mode:04o} and group {entry.gid}: another UID cannot write there"
    shut = [
        one
        for one in image.root.entries.values()
        if one.kind == "dir" and one.path.startswith(f"{home.rstrip('/')}/") and not _writable_by_any(one)
    ]
    if shut and entry is not None and _writable_by_any(entry):
        yield f"{shut[0].path} in HOME has mode {shut[0].mode:04o}: another UID cannot write its caches there"


def _writable_by_any(entry: Entry) -> bool:
    """Engines give a bare UID the group 0, so a folder of that group is as good as one open to all."""
    return entry.mode & 0o003 == 0o003 or (entry.gid == 0 and entry.mode & 0o030 == 0o030)
