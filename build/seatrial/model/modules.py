"""Read the Python modules of a vLLM tree as syntax trees, for detectors; nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from seatrial.model.errors import IntegrityError
from seatrial.model.tree import Tree


@dataclass(frozen=True)
class Source:
    """A module of the tree."""

    path: str
    tree: ast.Module


def modules(
    tree: Tree, word: str, *, below: str = "vllm/", where: Callable[[bytes], bool] = lambda _: True
) -> Iterator[Source]:
    """Yield the Python modules below a folder that hold a word, and whose bytes `where` takes; only these are parsed.

    Raises:
        IntegrityError: such a module is no Python; says where.
    """
    for path in tree.paths():
        if path.startswith(below) and path.endswith(".py"):
            data = tree.read(path)
            if word.encode() in data and where(data):
                yield Source(path, parse(data, path))


def parse(data: bytes | str, path: str) -> ast.Module:
    """Return the syntax tree of a module; several detectors that ask for the same one share it.

    Args:
        data: of a text that names an encoding, the text: bytes would be read in that encoding.

    Raises:
        IntegrityError: the bytes are no Python; says where.
    """
    try:
        return _parsed(data)
    except SyntaxError as error:
        raise IntegrityError(
            f"{path}:{error.lineno or 1} is no valid Python",
            why=error.msg,
            do="mend the file, or take the tree from its source again",
        ) from error
    except ValueError as error:
        raise IntegrityError(
            f"{path} is no valid Python", why=str(error), do="mend the file, or take the tree from its source again"
        ) from error


@lru_cache(maxsize=32)
def _parsed(data: bytes | str) -> ast.Module:
    return ast.parse(data)


def called(node: ast.AST) -> str:
    """Return the last name of what a call calls, empty if the node is no call by name."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name
    return ""


def function_line(tree: ast.Module, name: str) -> int:
    """Return the line of a function, 0 if it is not there."""
    return next((node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name), 0)


def cpu_kernel_modules(tree: Tree, kernel: str) -> list[Source]:
    """Return the modules that call a kernel's CPU form (`*<kernel>*_cpu`); its own wrapper does not count."""
    form = re.compile(rf"{re.escape(kernel)}\w*_cpu\b".encode())
    found = modules(tree, kernel, where=lambda data: form.search(data) is not None)
    return [source for source in found if any(_calls_cpu(source.tree, kernel))]


def _calls_cpu(tree: ast.AST, kernel: str) -> Iterator[bool]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names = {called(node) for node in ast.walk(function)}
            yield any(kernel in name and name.endswith("_cpu") for name in names - {function.name})
