"""The rules of the house that a machine can check, over the engine's code and over every file of the repository."""

from __future__ import annotations

import ast
import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "build" / "seatrial"
RANKS = {"model": 0, "ports": 1, "stages": 2, "flow": 3, "cli": 4}
"""A layer may import itself and those below; only ports and model may be shared sideways."""
MODEL_MAY_USE = {"pydantic", "seatrial"} | sys.stdlib_module_names
LONGEST_MODULE = 320
LONGEST_FUNCTION = 60
BIGGEST_FILE = 1_000_000

# Put together here, so that this file holds none of them.
FORBIDDEN = tuple(
    "".join(parts)
    for parts in (
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("deb.", "debian.org"),
        ("security.", "debian.org"),
        ("snapshot.", "debian.org"),
        ("npmjs", ".org"),
        ("npmjs", ".com"),
        ("/work", "/main"),
        ("/work", "/shared"),
        ("/opt", "/wheels"),
        ("/opt", "/pypi"),
        ("/tmp", "/venv"),
        ("/tmp", "/x/"),
        ("/root", "/.pyenv"),
    )
)

MODULES = sorted(ENGINE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return a module's dotted name."""
    parts = path.relative_to(ENGINE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module, own: str = "") -> Iterator[tuple[int, str]]:
    """Give the line and the full name of every imported module; of `from x import y`, x and x.y."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*own.split(".")[: -node.level], *([base] if base else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layer_faults(name: str, tree: ast.Module) -> list[str]:
    """Return what a module imports that its layer must not."""
    mine = name.split(".")
    faults: list[str] = []
    if len(mine) < 2 or mine[1] not in RANKS:
        return faults
    for line, other in imports(tree, name):
        theirs = other.split(".")
        if theirs[0] != "seatrial" or len(theirs) < 2 or theirs[1] not in RANKS:
            if mine[1] == "model" and theirs[0] not in MODEL_MAY_USE:
                faults.append(f"{name}:{line} imports {other}: the model needs nothing but pydantic")
            continue
        if RANKS[theirs[1]] > RANKS[mine[1]]:
            faults.append(f"{name}:{line} imports {other}: upward")
        if mine[1] == theirs[1] == "stages" and len(theirs) > 2 and theirs[2] != mine[2]:
            faults.append(f"{name}:{line} imports {other}: a stage imports a stage")
    return faults


def long_functions(tree: ast.Module) -> list[str]:
    """Return functions that are too long, with their length in lines."""
    return [
        f"{node.name}: {length}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]


def undocumented(tree: ast.Module) -> list[str]:
    """Return public classes, functions and methods without a docstring, and `module` when that has none."""
    missing = [] if ast.get_docstring(tree) else ["module"]
    places: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    while places:
        prefix, place = places.pop()
        for node in place.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name[0] == "_":
                continue
            if ast.get_docstring(node) is None:
                missing.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                places.append((f"{prefix}{node.name}.", node))
    return missing


def repository_files() -> Iterator[Path]:
    """Give every file that git would not ignore, as far as names in .gitignore tell."""
    lines = [line.strip() for line in (ROOT / ".gitignore").read_text().splitlines()]
    anywhere = [".git", *(line.rstrip("/") for line in lines if line and not line.startswith("/"))]
    at_root = ["shared", *(line.strip("/") for line in lines if line.startswith("/"))]
    folders = [ROOT]
    while folders:
        folder = folders.pop()
        ignored = anywhere + at_root if folder == ROOT else anywhere
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
                continue
            if path.is_dir():
                folders.append(path)
            else:
                yield path


def words_in(data: bytes) -> list[str]:
    """Return the forbidden words that a file's bytes hold."""
    return [word for word in FORBIDDEN if word.encode() in data.lower()]


def test_there_is_something_to_check() -> None:
    names = {name_of(path) for path in MODULES}
    assert {"seatrial", "seatrial.model.errors", "seatrial.ports.process"} <= names
    assert {ROOT / "pyproject.toml", ROOT / "README.md", Path(__file__)} <= set(repository_files())


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_downward(path: Path) -> None:
    assert layer_faults(name_of(path), ast.parse(path.read_text())) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_MODULE
    assert long_functions(ast.parse(text)) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_what_is_public_says_what_it_is(path: Path) -> None:
    assert undocumented(ast.parse(path.read_text())) == []


def test_no_file_names_a_registry_or_this_machine() -> None:
    found = {
        str(path.relative_to(ROOT)): words for path in repository_files() if (words := words_in(path.read_bytes()))
    }
    assert found == {}


def test_no_file_is_big() -> None:
    big = {
        str(path.relative_to(ROOT)): size for path in repository_files() if (size := path.stat().st_size) > BIGGEST_FILE
    }
    assert big == {}


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("seatrial.model.x", "import httpx", "nothing but pydantic"),
        ("seatrial.model.x", "from seatrial.ports import files", "upward"),
        ("seatrial.ports.x", "from seatrial.stages.wheel import overlay", "upward"),
        ("seatrial.stages.x", "def f():\n    import seatrial.flow.build", "upward"),
        ("seatrial.stages.x", "from seatrial.stages import wheel", "a stage imports a stage"),
        ("seatrial.stages.x", "from . import wheel", "a stage imports a stage"),
        ("seatrial.stages.inspect.a", "from seatrial.stages.wheel import overlay", "a stage imports a stage"),
        ("seatrial.stages.inspect.a", "from seatrial.stages.inspect.b import c", ""),
        ("seatrial.stages.x", "from seatrial.ports.files import sha256_file\nimport httpx", ""),
        ("seatrial.model.x", "import json\nfrom pydantic import Field\nfrom seatrial.model.values import Frozen", ""),
        ("seatrial.cli.x", "from seatrial.flow.build import build", ""),
    ],
)
def test_the_import_rule_sees_what_it_is_for(name: str, source: str, wrong: str) -> None:
    faults = layer_faults(name, ast.parse(source))
    assert bool(faults) is bool(wrong)
    assert all(wrong in fault for fault in faults)


def test_the_other_rules_see_what_they_are_for() -> None:
    long = "def f():\n" + "    x = 1\n" * LONGEST_FUNCTION
    assert long_functions(ast.parse(long)) == [f"f: {LONGEST_FUNCTION + 1}"]
    assert long_functions(ast.parse(long.removesuffix("    x = 1\n"))) == []
    source = '"""D."""\nclass A:\n    """D."""\n    def b(self): pass\n    def _c(self): pass\ndef d(): pass\n'
    assert undocumented(ast.parse(source)) == ["d", "A.b"]
    assert undocumented(ast.parse("x = 1\n")) == ["module"]
    assert words_in(f"see https://{FORBIDDEN[0].upper()}/simple".encode()) == [FORBIDDEN[0]]
    assert words_in(b"nothing of the kind") == []
