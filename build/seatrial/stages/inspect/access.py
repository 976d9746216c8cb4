"""Who can use the image, and how: every user reads Python, every command starts plainly."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from seatrial.stages.inspect.contract import closed_to_others
from seatrial.stages.inspect.subject import Found, Image

GLOBALS = ("LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV", "PYTHONSTARTUP", "PROMPT_COMMAND")
"""Variables with which something is loaded or run by every process, or by every shell."""

PRELOAD_FILE = "/etc/ld.so.preload"
"""Libraries that the loader puts into every process, whatever its variables."""

SHELL_SECONDS = 60.0


def keeps(path: str, size: int) -> bool:
    """Tell whether a file's bytes are needed here."""
    return path == PRELOAD_FILE and size < 1 << 16


def check_readable(image: Image) -> Found:
    """Check that a user without any right of owner or group can read all of Python and its packages."""
    excused = image.excused("readable")
    problems: list[str] = []
    folders = sorted(_python_folders(image))
    for folder in folders:
        if (trouble := closed_to_others(image.root, folder)) and not excused.allows(folder):
            problems.append(f"{folder} holds Python, and a user other than its owner cannot enter it: {trouble}")
    shut = [
        entry.path
        for entry in image.root.entries.values()
        if entry.kind in ("file", "dir")
        and entry.path.startswith(tuple(f"{folder}/" for folder in folders))
        and not entry.mode & 0o004
        and not excused.allows(entry.path)
    ]
    if shut:
        mode = image.root.entries[shut[0]].mode
        problems.append(f"{len(shut)} files of Python can be read by their owner alone: {shut[0]} (mode {mode:04o})")
    return Found(tuple(problems), {"folders": folders, **excused.measured()})


def check_shell(image: Image) -> Found:
    """Check that nothing is loaded into every process, and start a shell in place of the entrypoint."""
    excused = image.excused("shell")
    declared = image.expected.environment if image.expected else {}
    problems = [
        f"variable {name} is set for every process in the image: {image.facts.environment[name]}"
        for name in GLOBALS
        if image.facts.environment.get(name) and name not in declared and not excused.allows(f"variable {name}")
    ]
    if text := (image.root.text(PRELOAD_FILE) or "").strip():
        problems.append(f"{PRELOAD_FILE} puts {text.split()[0]} into every process of the image")
    account = (image.root.text("/etc/passwd") or "").splitlines()
    wanted = {
        line.rpartition(":")[2] for line in account if image.facts.user.partition(":")[0] in line.split(":")[:3:2]
    }
    problems += [
        f"the image's user has the login shell {name}, which the image does not hold"
        for name in sorted(wanted)
        if name and image.root.at(name) is None
    ]
    shell = next((path for path in ("/bin/bash", "/bin/sh") if image.root.at(path) is not None), "")
    if shell:
        problems += _started(image, shell)
    return Found(tuple(problems), {"shell": shell or "none", **excused.measured()})


def _started(image: Image, shell: str) -> Iterator[str]:
    run = image.run((shell, "-c", "true && env"), SHELL_SECONDS)
    words = next((line.strip() for line in run.stderr.splitlines() if line.strip()), "")
    if run.status is None:
        yield f"--entrypoint {shell} did not end within {SHELL_SECONDS:.0f} s"
    elif run.status:
        yield f"--entrypoint {shell} ends with status {run.status}: {words or 'it says nothing'}"
    elif words:
        yield f"--entrypoint {shell} complains before it does anything: {words}"
    else:
        seen = set(run.stdout.splitlines())
        lost = [
            name for name, value in image.facts.environment.items() if f"{name}={value}".splitlines()[0] not in seen
        ]
        if lost:
            yield f"--entrypoint {shell} does not pass on what the image sets: {', '.join(sorted(lost))}"


def _python_folders(image: Image) -> Iterator[str]:
    """Yield the site folders and the real interpreter's own library."""
    yield from image.python.sites
    real = image.root.resolve(image.python.interpreter) if "/" in image.python.interpreter else None
    if real is None:
        return
    prefix = posixpath.dirname(posixpath.dirname(real))
    version = image.python.markers.get("python_version", "")
    library = f"{prefix}/lib/python{version}"
    if image.root.at(library) is not None:
        yield library
