"""The functions, classes and imports of a module, and the classes that it takes from its neighbours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

MODULE_BASES = frozenset({"Module", "CustomOp", "PluggableLayer", "RecurrentGemmaBase"})
"""Last names of bases that make a class a module of torch's."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ClassInfo:
    """A class: its methods, and the names of its bases."""

    name: str
    node: ast.ClassDef
    bases: tuple[str, ...]
    methods: dict[str, Function]


@dataclass
class Contents:
    """What a module holds at its top, found in branches and `try` too."""

    tree: ast.Module
    refs: dict[str, str] = field(default_factory=dict)
    """Local name to the dotted name of what was imported, wherever in the module."""
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ClassInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.refs.update(_imported(node))
        for statement in _top(self.tree.body):
            if isinstance(statement, Function):
                self.functions[statement.name] = statement
            elif isinstance(statement, ast.ClassDef):
                self.classes[statement.name] = _class(statement)

    def lineage(self, name: str) -> list[ClassInfo]:
        """Return a class and those of its ancestors that are known, nearest first."""
        found: list[ClassInfo] = []
        todo = [name]
        while todo:
            known = self.classes.get(todo.pop(0))
            if known is not None and known not in found:
                found.append(known)
                todo += known.bases
        return found

    def method(self, cls: str, name: str, after: str = "") -> tuple[str, Function] | None:
        """Return a method and the class that it stands in.

        Args:
            after: look only at what follows this class in the order of inheritance, as `super()` does.
        """
        line = self.lineage(cls)
        names = [known.name for known in line]
        if after:
            line = line[names.index(after) + 1 :] if after in names else []
        return next(((known.name, known.methods[name]) for known in line if name in known.methods), None)

    def is_module(self, name: str) -> bool:
        """Tell whether a class is a module of torch's: by its bases, or by having a forward method and some base."""
        line = self.lineage(name)
        bases = {base for known in line for base in known.bases}
        forward = any(method.startswith("forward") for known in line for method in known.methods)
        return bool(bases & MODULE_BASES) or (forward and bool(bases - {"object", "ABC", "Protocol"}))


def _class(node: ast.ClassDef) -> ClassInfo:
    bases = []
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        bases.append(
            plain.attr if isinstance(plain, ast.Attribute) else plain.id if isinstance(plain, ast.Name) else ""
        )
    methods = {item.name: item for item in _top(node.body) if isinstance(item, Function)}
    return ClassInfo(node.name, node, tuple(base for base in bases if base), methods)


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.If(body=inner, orelse=other):
                yield from _top([*inner, *other])
            case ast.Try(body=inner, handlers=handlers, orelse=other):
                yield from _top([*(line for handler in handlers for line in handler.body), *other, *inner])
            case ast.With(body=inner):
                yield from _top(inner)
            case _:
                yield statement


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            name = alias.asname or alias.name.split(".")[0]
            yield name, alias.name if alias.asname else name
        else:
            # What is imported relatively is vLLM's own, wherever that lies.
            module = f"vllm.{node.module or ''}".rstrip(".") if node.level else node.module
            yield alias.asname or alias.name, f"{module}.{alias.name}"
