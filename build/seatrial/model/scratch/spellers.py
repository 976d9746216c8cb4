"""Which functions and classes of a module spell a 16-bit dtype out, or use one that does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from seatrial.model.scratch.classes import Contents, Function, Library
from seatrial.model.scratch.telling import spelled_lines
from seatrial.model.scratch.text import source_lines


class Spellers:
    """What of a module is worth a walk; told from its text, so that it may name too much and never too little."""

    def __init__(self, contents: Contents, source: str) -> None:
        self._contents = contents
        self._text = source_lines(source)
        self._lines = spelled_lines(source)
        self._names, self._anywhere = self._named()

    def _named(self) -> tuple[set[str], bool]:
        """Return the names at the module's top through which a dtype can come, and whether it can in other ways."""
        names: set[str] = set()
        anywhere = False
        for line in self._lines:
            owner = next((one for one in self._contents.tree.body if _spans(one, line)), None)
            match owner:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(name)
                case _:
                    anywhere = True
        before = 0
        while before != len(names):
            before = len(names)
            for name, function in self._contents.functions.items():
                if name not in names and self._mentions(function, names):
                    names.add(name)
        return names, anywhere

    def _mentions(self, node: ast.stmt, names: Iterable[str]) -> bool:
        words = "|".join(re.escape(name) for name in names)
        body = "".join(self._text[node.lineno - 1 : node.end_lineno])
        return bool(words) and re.search(rf"\b(?:{words})\b", body) is not None

    def classes(self) -> list[str]:
        """Return the modules of torch's among the classes that spell a dtype, or mention what does."""
        library = Library(self._contents, None)
        return [
            name
            for name, known in self._contents.classes.items()
            if library.is_module(name)
            and (
                self._anywhere
                or any(one.name in self._names for one in library.lineage(name))
                or self._mentions(known.node, self._names)
            )
        ]

    def holds(self, method: Function) -> bool:
        """Tell whether a method is worth a walk: it spells a dtype, or mentions what does.

        A default that spells one can be taken by any method of the class.
        """
        if self._anywhere or any(_spans(method, line) for line in self._lines):
            return True
        return self._defaults or self._mentions(method, self._names - set(self._contents.classes))

    @property
    def _defaults(self) -> bool:
        methods = [one for known in self._contents.classes.values() for one in known.methods.values()]
        return any(one.lineno <= line < one.body[0].lineno for one in methods for line in self._lines)


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)
