"""The functions, classes and imports of a module, and the classes that it takes from its neighbours."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

MODULE_BASES = frozenset({"Module", "CustomOp", "PluggableLayer"})
"""Last names of bases that make a class a module of torch's."""
_PLAIN = frozenset({"object", "ABC", "Protocol", "NamedTuple", "Enum", "StrEnum", "TypedDict", "Generic"})
Function = ast.FunctionDef | ast.AsyncFunctionDef
Reader = Callable[[str], ast.Module | None]
"""Gives the syntax tree of a module by its path in the tree of sources; None where it is of no interest."""


@dataclass(frozen=True)
class ClassInfo:
    """A class: its methods, and the names of its bases."""

    name: str
    node: ast.ClassDef
    bases: tuple[str, ...]
    methods: dict[str, Function]
    home: str
    """Path of the module that it stands in."""

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """Return what each attribute of `self` is ever set to."""
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                        found.setdefault(target.attr, []).append(node.value)
        return found


@dataclass
class Contents:
    """What a module holds at its top, found in branches and `try` too."""

    path: str
    tree: ast.Module
    refs: dict[str, str] = field(default_factory=dict)
    """Local name to the dotted name of what was imported, wherever in the module."""
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ClassInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the module."""
        package = self.path.removesuffix(".py").split("/")[:-1]
        for node in _statements(self.tree.body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.refs.update(_imported(node, package))
        for statement in _top(self.tree.body):
            if isinstance(statement, Function):
                self.functions[statement.name] = statement
            elif isinstance(statement, ast.ClassDef):
                self.classes[statement.name] = self._class(statement)

    def _class(self, node: ast.ClassDef) -> ClassInfo:
        bases = []
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            name = plain.attr if isinstance(plain, ast.Attribute) else plain.id if isinstance(plain, ast.Name) else ""
            bases.append(self.refs.get(name, name).rpartition(".")[2])
        methods = {item.name: item for item in _top(node.body) if isinstance(item, Function)}
        return ClassInfo(node.name, node, tuple(base for base in bases if base), methods, self.path)


class Library:
    """A module, with the classes of other modules that it imports."""

    def __init__(self, main: Contents, read: Reader | None) -> None:
        """Take a module; without `read`, a class with a base that is imported may be anything."""
        self.main = main
        self.homes = {main.path: main}
        self.classes = dict(main.classes)
        self._unread = read is None
        if read is not None:
            self._adopt(main, read)

    def _adopt(self, contents: Contents, read: Reader) -> None:
        for ref in sorted(set(contents.refs.values())):
            module, _, name = ref.rpartition(".")
            if not module.startswith("vllm.") or not name[:1].isupper() or name in self.classes:
                continue
            path = module.replace(".", "/") + ".py"
            if path not in self.homes:
                tree = read(path)
                if tree is None:
                    continue
                self.homes[path] = Contents(path, tree)
            for known in _lineage(self.homes[path].classes, name):
                self.classes.setdefault(known.name, known)

    def class_of(self, ref: str) -> str:
        """Return the name of the known class that a dotted name is that of, empty if it is none."""
        module, _, name = ref.rpartition(".")
        return name if name in self.classes and (not module or module.startswith("vllm.")) else ""

    def lineage(self, name: str) -> list[ClassInfo]:
        """Return a class and those of its ancestors that are known, nearest first."""
        return _lineage(self.classes, name)

    def method(self, cls: str, name: str, after: str = "") -> tuple[ClassInfo, Function] | None:
        """Return a method and the class that it stands in.

        Args:
            after: look only at what follows this class in the order of inheritance, as `super()` does.
        """
        line = self.lineage(cls)
        if after:
            names = [known.name for known in line]
            line = line[names.index(after) + 1 :] if after in names else []
        return next(((known, known.methods[name]) for known in line if name in known.methods), None)

    def defined(self, cls: str, name: str) -> list[ast.expr]:
        """Return the one expression that an attribute is ever set to, none if there are more."""
        found = [value for known in self.lineage(cls) for value in known.assigned.get(name, ())]
        return found if len(found) == 1 else []

    def fields(self, name: str) -> list[str]:
        """Return the annotated fields of a class, as dataclasses and named tuples take them."""
        lines = [line for known in reversed(self.lineage(name)) for line in known.node.body]
        return [
            line.target.id for line in lines if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        ]

    def is_whole(self, name: str) -> bool:
        """Tell whether every base of a class is known, so that no attribute of it can come from elsewhere."""
        return all(
            base in self.classes or base in _PLAIN | MODULE_BASES for one in self.lineage(name) for base in one.bases
        )

    def is_module(self, name: str) -> bool:
        """Tell whether a class is a module of torch's: by its bases, or by having a forward method and some base."""
        line = self.lineage(name)
        bases = {base for known in line for base in known.bases}
        if self._unread and not bases <= {*self.classes, *_PLAIN}:
            return True
        forward = any(method.startswith("forward") for known in line for method in known.methods)
        return bool(bases & MODULE_BASES) or (forward and bool(bases - _PLAIN))


def _lineage(classes: dict[str, ClassInfo], name: str) -> list[ClassInfo]:
    found: list[ClassInfo] = []
    todo = [name]
    while todo:
        known = classes.get(todo.pop(0))
        if known is not None and known not in found:
            found.append(known)
            todo += known.bases
    return found


def _inner(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks that a statement holds."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a block, those in branches too, but in no function or class."""
    for statement in body:
        yield statement
        if not isinstance(statement, Function | ast.ClassDef):
            for block in _inner(statement):
                yield from _top(block)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for block in _inner(statement):
            yield from _statements(block)


def _imported(node: ast.Import | ast.ImportFrom, package: list[str]) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            name = alias.asname or alias.name.split(".")[0]
            yield name, alias.name if alias.asname else name
        else:
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield alias.asname or alias.name, f"{module}.{alias.name}"
