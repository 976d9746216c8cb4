"""Find nodes of a libcst module by where `ast` saw them, and change many of them in one walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst.metadata import (
    CodeRange,
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
)

from seatrial.model.scratch import Span, source_lines, source_text

Change = Callable[[Any], Any]
"""Takes a node whose inner changes are made, gives the node that stands for it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A place that cannot be repaired, and why."""

    path: str
    line: int
    why: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.path}:{self.line}: {self.why}"


class RefusedPlaceError(Exception):
    """One place cannot be repaired; caught where refusals are gathered."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.why = why


@dataclass
class Edits:
    """A parsed module, and the changes that are to be made to it."""

    source: bytes
    path: str
    changes: dict[cst.CSTNode, list[Change]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Parse the source; it is known to be Python."""
        wrapper = MetadataWrapper(cst.parse_module(self.source))
        self.module = wrapper.module
        self._ranges: Mapping[cst.CSTNode, CodeRange] = wrapper.resolve(PositionProvider)
        self._parents: Mapping[cst.CSTNode, cst.CSTNode] = wrapper.resolve(ParentNodeProvider)
        self._contexts = wrapper.resolve(ExpressionContextProvider)
        self._lines = source_lines(source_text(self.source, self.path))
        self._by_range: dict[tuple[int, int, int, int], list[cst.CSTNode]] = {}
        for node, where in self._ranges.items():
            key = (where.start.line, where.start.column, where.end.line, where.end.column)
            self._by_range.setdefault(key, []).append(node)

    def at(self, span: Span) -> cst.BaseExpression:
        """Return the expression at a span; refuses when there is none."""
        key = (
            span.line,
            self._column(span.line, span.column),
            span.end_line,
            self._column(span.end_line, span.end_column),
        )
        for node in self._by_range.get(key, ()):
            if isinstance(node, cst.BaseExpression):
                return node
        raise RefusedPlaceError(span.line, "the place that the analysis names is not found again")

    def _column(self, line: int, offset: int) -> int:
        return len(self._lines[line - 1].encode()[:offset].decode())

    def line(self, node: cst.CSTNode) -> int:
        """Return the line that a node begins on."""
        return self._ranges[node].start.line

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what a node stands in, innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def is_read(self, node: cst.Name) -> bool:
        """Tell whether a name is read."""
        return self._contexts.get(node) is ExpressionContext.LOAD

    def is_bound(self, node: cst.Name) -> bool:
        """Tell whether a name is given a value."""
        return self._contexts.get(node) is ExpressionContext.STORE

    def change(self, node: cst.CSTNode, change: Change) -> None:
        """Make a change to a node, after those that were asked for before."""
        self.changes.setdefault(node, []).append(change)

    def refuse(self, line: int, why: str) -> None:
        """Note a place that cannot be repaired."""
        self.refusals.append(Refusal(self.path, line, why))

    def done(self) -> bytes:
        """Return the source with every change made."""
        changed = self.module.visit(_Walk(self.changes))
        assert isinstance(changed, cst.Module)
        return changed.bytes


class _Walk(cst.CSTTransformer):
    def __init__(self, changes: Mapping[cst.CSTNode, Sequence[Change]]) -> None:
        super().__init__()
        self._changes = changes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        for change in self._changes.get(original_node, ()):
            updated = change(updated)
        return updated


def inside(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and everything in it."""
    yield node
    for child in node.children:
        yield from inside(child)


def text(node: cst.CSTNode) -> str:
    """Return a node's code, comments and line breaks of no account."""
    return " ".join(cst.Module([]).code_for_node(node).split())


def dotted(node: cst.CSTNode) -> str:
    """Return `a.b.c` of a name or attribute, empty for anything else."""
    match node:
        case cst.Name(value=name):
            return name
        case cst.Attribute(value=inner, attr=cst.Name(value=name)):
            before = dotted(inner)
            return f"{before}.{name}" if before else ""
    return ""


def parameters(function: cst.FunctionDef) -> list[str]:
    """Return the names of a method's parameters after `self`, those by position first."""
    given = [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
    return [param.name.value for param in given][1:]
