"""Show that a repaired source runs in float16 what it ran before: undo what is neutral there, and compare."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

HALF = "torch.float16"
SIXTEEN = frozenset({"torch.float16", "torch.half", "torch.bfloat16"})


def differences(before: str, after: str, given: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of the old source on which the new one would do something else for a model in float16.

    Args:
        given: the keyword that repaired methods take projected states by; None where its callers are as before.
    """
    old, new = _Float16(given), _Float16(given)
    yield from _compare(old.visit(ast.parse(before)), new.visit(ast.parse(after)), 1)
    if old.dropped - new.dropped:  # what was there before has to stay, neutral or not
        yield 1, "it would run something else in float16"
    if new.torch > old.torch and not new.imports:
        yield 1, "torch is not imported by its own name"


class _Float16(ast.NodeTransformer):
    """Take out what a model in float16 does not notice."""

    def __init__(self, given: str) -> None:
        self._given = given
        self.dropped: Counter[str] = Counter()
        self.torch = 0
        """How often torch is named."""
        self.imports = False
        """The module imports torch by that name."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Count torch."""
        self.torch += node.id == "torch"
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """Look for torch."""
        self.imports |= any(one.asname is None and one.name.split(".")[0] == "torch" for one in node.names)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Drop `and X.dtype == torch.float16` at a test's end."""
        self.generic_visit(node)
        if isinstance(node.op, ast.And) and _asks_half(node.values[-1], ast.Eq):
            self.dropped[ast.unparse(node.values[-1])] += 1
            rest = node.values[:-1]
            return rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest)
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """Drop the way of other dtypes, and the check in front of the operator."""
        self.generic_visit(node)
        if not node.orelse and len(node.body) == 1:
            other = _asks_half(node.test, ast.NotEq) and isinstance(node.body[0], ast.Return)
            if other or (_asks_one_dtype(node.test) and isinstance(node.body[0], ast.Raise)):
                self.dropped[ast.unparse(node)] += 1
                return None
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Take the first half of `a if projected is None else b`."""
        self.generic_visit(node)
        return node.body if ast.unparse(node.test) == f"{self._given} is None" else node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        """Drop the parameter that nobody gives in float16."""
        self.generic_visit(node)
        if node.args and node.args[-1].arg == self._given:
            node.args.pop()
            node.defaults.pop()
        return node


def _asks_half(test: ast.AST, op: type[ast.cmpop]) -> bool:
    match test:
        case ast.Compare(left=ast.Attribute(value=ast.Name(), attr="dtype"), ops=[asked], comparators=[right]):
            return isinstance(asked, op) and ast.unparse(right) == HALF
    return False


def _asks_one_dtype(test: ast.AST) -> bool:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left=left, ops=ops, comparators=others)):
            sides = [left, *others]
            return all(isinstance(op, ast.Eq) for op in ops) and all(
                isinstance(side, ast.Attribute) and side.attr == "dtype" for side in sides
            )
    return False


def _compare(before: object, after: object, line: int) -> Iterator[tuple[int, str]]:
    line = getattr(before, "lineno", line)
    if isinstance(before, list) and isinstance(after, list):
        for one, other in zip_longest(before, after):
            yield from _compare(one, other, line)
    elif isinstance(before, ast.AST) and isinstance(after, ast.AST):
        if _same_dtype(before, after):
            return
        if type(before) is not type(after):
            yield line, "it would run something else in float16"
            return
        for name in before._fields:
            yield from _compare(getattr(before, name, None), getattr(after, name, None), line)
    elif before != after:
        yield line, "it would run something else in float16"


def _same_dtype(before: ast.AST, after: ast.AST) -> bool:
    """Tell a 16-bit literal, or the name that holds one, from what stands for it: some tensor's dtype."""
    match before, after:
        case ast.Call(func=ast.Attribute(value=old, attr="half" | "bfloat16"), args=[]), ast.Call(
            func=ast.Attribute(value=new, attr="to"), args=[dtype]
        ):
            return _is_dtype(dtype) and not list(_compare(old, new, 1))
        case ((ast.Name() | ast.Attribute() | ast.Subscript()), _):
            return _is_dtype(after) and not _is_dtype(before)
    return False


def _is_dtype(node: ast.AST) -> bool:
    text = ast.unparse(node)
    return text == "torch.get_default_dtype()" or (isinstance(node, ast.Attribute) and node.attr == "dtype")
