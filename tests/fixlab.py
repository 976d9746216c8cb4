"""Small vLLM-like trees, fixes and patches for tests of the fix engine."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from seatrial.model.fixes import Finding, Fix, Kind, Series
from seatrial.model.platforms import Platform
from seatrial.model.series import LoadedFix, LoadedSeries, Patch

BASE = "1.2.3"
CPU = Platform(name="cpu", family="cpu", device="cpu", machine="x86_64")
XPU = Platform(name="xpu", family="xpu", device="xpu", machine="x86_64")

KERNEL = "vllm/kernel.py"
LINES = [f"line {number}\n" for number in range(1, 31)]
PRISTINE = {
    "vllm/__init__.py": "",
    KERNEL: "".join(LINES).replace("line 10\n", "BUG one\n").replace("line 20\n", "BUG two\n"),
    "vllm/other.py": "OTHER BUG\n",
    "README.md": "read me\n",
}
"""A tree with a defect in two parts (`BUG one`, `BUG two`) and another one (`OTHER BUG`)."""

DETECTOR = """
from seatrial.model.fixes import Finding

WORDS = {words!r}

def subject(tree):
    return tree.has({path!r})

def detect(tree):
    if not tree.has({path!r}):
        return []
    found = []
    for number, line in enumerate(tree.read({path!r}).decode().splitlines(), 1):
        for part, word in WORDS.items():
            if line == word:
                found.append(Finding(fix={fix!r}, part=part, path={path!r}, line=number, message="it is wrong"))
    return found
"""


class MemoryTree:
    """A tree held in memory."""

    origin = "memory"

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)

    def paths(self) -> Iterable[str]:
        return sorted(self.files)

    def has(self, path: str) -> bool:
        return path in self.files

    def read(self, path: str) -> bytes:
        return self.files[path].encode()


def fix(fix_id: str = "bug", **more: Any) -> Fix:
    """Return a fix with everything filled in."""
    fields: dict[str, Any] = {
        "id": fix_id,
        "title": f"Cure {fix_id}",
        "kind": Kind.PYTHON,
        "why": "it is wrong",
        "references": (),
        "platforms": ("cpu",),
        "bases": (BASE,),
        "parts": ("one", "two"),
        "drop_when": "upstream has it",
        "proof": "test_it.py",
    }
    return Fix(**(fields | more))


def finding(fix_id: str = "bug", part: str = "one", line: int = 1) -> Finding:
    """Return a finding in the kernel."""
    return Finding(fix=fix_id, part=part, path=KERNEL, line=line, message="it is wrong")


def loaded(
    what: Fix, *, subject: bool = True, found: Iterable[Finding] = (), patched: bool = True, data: bytes = b"patch"
) -> LoadedFix:
    """Return a loaded fix whose detector says what it is told to."""
    detector = SimpleNamespace(subject=lambda tree: subject, detect=lambda tree: list(found))
    patch = Patch(f"{what.id}/{BASE}.patch", data, hashlib.sha256(data).hexdigest(), (KERNEL,))
    return LoadedFix(what, detector, {BASE: patch} if patched else {})


def series(*fixes: LoadedFix) -> LoadedSeries:
    """Return a series of loaded fixes."""
    return LoadedSeries(Series(fixes=tuple(one.id for one in fixes)), {one.id: one for one in fixes})


def write_tree(root: Path, files: Mapping[str, str] = PRISTINE) -> Path:
    """Write files below a folder and return it."""
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
    return root


def write_fix(patches: Path, what: Fix, *, words: Mapping[str, str], path: str = KERNEL) -> Path:
    """Write a fix's folder (no patch yet) and put it at the end of the series."""
    folder = patches / what.id
    folder.mkdir(parents=True)
    plain = what.model_dump(mode="json")
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    (folder / "fix.toml").write_text("\n".join(lines) + "\n")
    (folder / what.proof).write_text("")
    (folder / "defect.py").write_text(DETECTOR.format(words=dict(words), path=path, fix=what.id))
    order = patches / "series.toml"
    known = order.read_text().splitlines()[1:-1] if order.exists() else []
    order.write_text("\n".join(["fixes = [", *known, f'  "{what.id}",', "]"]) + "\n")
    return folder


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return '"' + str(value) + '"'


def git(folder: Path, *words: str, stdin: bytes | None = None) -> bytes:
    """Run plain git as a user would."""
    return subprocess.run(["git", *words], cwd=folder, input=stdin, check=True, capture_output=True).stdout


MESSAGE = "Cure it\n\nBecause it is wrong.\n\nDescription: cures it\nOrigin: vendor\nForwarded: not-needed\n"


def make_patch(
    folder: Path, before: Mapping[str, str], change: Callable[[Path], None], *, message: str = MESSAGE
) -> bytes:
    """Return a commit as a patch, made by plain git with the options that docs/fixes.md gives."""
    folder.mkdir(parents=True)
    write_tree(folder, before)
    who = ["-c", "user.name=Ann Author", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
    git(folder, "init", "--quiet")
    git(folder, "add", "--all", "--force")
    git(folder, *who, "commit", "--quiet", "-m", "before")
    change(folder)
    git(folder, "add", "--all", "--force")
    date = "--date=2026-01-02T03:04:05+0200"
    git(folder, *who, "commit", "--quiet", "--cleanup=verbatim", date, "-F", "-", stdin=message.encode())
    options = ["--keep-subject", "--zero-commit", "--no-signature", "--no-stat", "--full-index", "--no-renames"]
    return git(folder, "format-patch", "--stdout", "-1", *options)


def replacing(path: str, *pairs: tuple[str, str]) -> Callable[[Path], None]:
    """Return a change that replaces text in one file."""

    def change(root: Path) -> None:
        text = (root / path).read_bytes().decode()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        (root / path).write_bytes(text.encode())

    return change


CURE = replacing(KERNEL, ("BUG one\n", "cured one\n"), ("BUG two\n", "cured two\n"))
"""The change that cures both parts of the defect."""
