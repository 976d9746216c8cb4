"""Conditions under which a line runs: what they are called, what follows from them, which exclude each other."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

Fact = tuple[str, bool]
"""A condition's text, and whether it holds."""
Ways = frozenset[frozenset[Fact]]
"""Alternatives, each by what follows from it."""
DTYPE = "dtype is "
"""Begins the text of a fact about the model's dtype; the dtype's name follows, empty for another tensor's."""
ASKS = frozenset({"getattr", "hasattr", "isinstance", "len", "bool"})
"""Calls that answer alike within one run of a function."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that holds where a line runs."""

    text: str
    line: int
    facts: frozenset[Fact]
    branch: bool = True
    """It opens a branch; what an earlier `return` leaves behind does not."""
    ways: frozenset[Ways] = frozenset()
    """Alternatives of which one at least is so."""

    @property
    def dtypes(self) -> frozenset[str]:
        """Return the dtypes that the model is known to have here; empty text: that of another tensor."""
        return frozenset(text.removeprefix(DTYPE) for text, holds in self.facts if holds and text.startswith(DTYPE))


def facts_of(guards: Iterable[Guard]) -> frozenset[Fact]:
    """Return everything that some guards say together."""
    return frozenset().union(*(guard.facts for guard in guards))


def exclude(guards: Iterable[Guard]) -> bool:
    """Tell whether guards contradict each other, so that no run meets all of them."""
    met = list(guards)
    known = facts_of(met)
    while True:
        denied = {(text, not holds) for text, holds in known}
        left = [[way for way in ways if not way & denied] for guard in met for ways in guard.ways]
        if known & denied or not all(left):
            return True
        more = known.union(*(ways[0] for ways in left if len(ways) == 1))
        if more == known:
            return False
        known = more


def literal_holds(guards: Iterable[Guard], dtype: str) -> bool:
    """Tell whether a model has a 16-bit dtype where something is made under some guards: it is so, or not the other."""
    other = "float16" if dtype == "bfloat16" else "bfloat16"
    facts = facts_of(guards)
    return (DTYPE + dtype, True) in facts or (DTYPE + other, False) in facts


def known_dtypes(guards: Iterable[Guard]) -> frozenset[str]:
    """Return the dtypes that the model is known to have under some guards."""
    return frozenset().union(*(guard.dtypes for guard in guards))


class Bindings:
    """How often a function binds each name, and to what where it does so once."""

    def __init__(self, function: ast.AST) -> None:
        self.name = getattr(function, "name", "")
        self.stores: Counter[str] = Counter()
        self.bound: dict[str, ast.expr] = {}
        self.looped: set[tuple[int, int]] = set()
        for node, looped in _nodes(function, False):
            if looped and isinstance(node, ast.expr):
                self.looped.add((node.lineno, node.col_offset))
            match node:
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                    self.stores[name] += 2 if looped else 1
                case ast.Attribute(ctx=ast.Store()):
                    self.stores[ast.unparse(node)] += 2
                case ast.arg(arg=name):
                    self.stores[name] += 1
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    self.bound[name] = value
            if isinstance(node, ast.NamedExpr):
                self.bound[node.target.id] = node.value


@dataclass(frozen=True, slots=True)
class Scope:
    """A function in which conditions are read.

    Args:
        dtype_of: of an expression that is a dtype: its name, empty for that of some tensor; else None.
        outer: the expressions that an attribute or a call of a method stands for.
    """

    bindings: Bindings
    dtype_of: Callable[[ast.expr], str | None]
    outer: Callable[[ast.expr], Iterable[ast.expr]]

    def guard(self, test: ast.expr, holds: bool, *, branch: bool = True) -> Guard:
        """Return the guard that a test makes of the lines that depend on it."""
        text = ast.unparse(test)
        shown = text if holds else f"not ({text})" if isinstance(test, ast.BoolOp | ast.Compare) else f"not {text}"
        facts = frozenset(self._facts(test, holds, 0))
        return Guard(shown, test.lineno, facts, branch, frozenset(self._ways(test, holds)))

    def _ways(self, test: ast.expr, holds: bool) -> Iterator[Ways]:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._ways(operand, not holds)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is holds:
                for value in values:
                    yield from self._ways(value, holds)
            case ast.BoolOp(values=values):
                yield frozenset(frozenset(self._facts(value, holds, 0)) for value in values)
            case ast.Name(id=name) if self._once(name):
                yield from self._ways(self.bindings.bound[name], holds)

    def _once(self, name: str) -> bool:
        """Tell whether a name is bound once, to something that a condition can be read from."""
        return self.bindings.stores[name] == 1 and name in self.bindings.bound

    def _facts(self, test: ast.expr, holds: bool, depth: int) -> Iterator[Fact]:  # noqa: C901 - one a kind of test
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._facts(operand, not holds, depth)
                return
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is holds:
                for value in values:
                    yield from self._facts(value, holds, depth)
                return
            case ast.BoolOp(op=ast.Or(), values=values):
                yield from self._common(values, holds, depth)
            case ast.Compare(ops=[ast.NotEq() | ast.IsNot() | ast.NotIn() | ast.Gt() | ast.GtE() as op]):
                test, holds = _turned(test, op), not holds
        if text := self._text(test):
            yield text, holds
        if isinstance(test, ast.Compare):
            yield from self._dtype_facts(test, holds)
        if depth > 4:
            return
        if isinstance(test, ast.Name) and self._once(test.id):
            yield from self._facts(self.bindings.bound[test.id], holds, depth + 1)
        for meant in self.outer(test):
            yield from (fact for fact in self._facts(meant, holds, depth + 1) if fact[0].startswith(DTYPE))

    def _common(self, values: list[ast.expr], holds: bool, depth: int) -> Iterator[Fact]:
        """Yield what every one of some alternatives says of the dtype."""
        said = [{fact for fact in self._facts(value, holds, depth) if fact[0].startswith(DTYPE)} for value in values]
        yield from set.intersection(*said)

    def _dtype_facts(self, test: ast.Compare, holds: bool) -> Iterator[Fact]:
        sides = [self.dtype_of(side) for side in (test.left, test.comparators[0])]
        match test.ops[0], sides:
            case ((ast.Eq() | ast.Is()), [str(left), str(right)]) if not (left and right):
                yield DTYPE + (left or right), holds
            case ast.In(), ["", _]:
                named = [self.dtype_of(item) for item in getattr(test.comparators[0], "elts", [])]
                if len(named) == 1 and named[0]:
                    yield DTYPE + named[0], holds

    def _text(self, test: ast.expr) -> str:
        """Return a text that two places share only if the condition is alike at both; empty where it may vary."""
        text, stores = ast.unparse(test), self.bindings.stores
        local = False
        for node in ast.walk(test):
            match node:
                case ast.Name(id=name):
                    local = local or (name != "self" and bool(stores[name]))
                    varies = stores[name] > 1
                case ast.Attribute():
                    varies = bool(stores[ast.unparse(node)])
                case ast.Call(func=ast.Name(id=name)):
                    varies = name not in ASKS
                case _:
                    varies = isinstance(node, ast.Call | ast.Await | ast.NamedExpr | ast.Yield)
            if varies:
                place = (test.lineno, test.col_offset)
                return "" if place in self.bindings.looped else f"{text} @{place[0]}:{place[1]}"
        return f"{text} in {self.bindings.name}" if local else text


def _turned(test: ast.Compare, op: ast.cmpop) -> ast.Compare:
    opposite: dict[type[ast.cmpop], ast.cmpop] = {
        ast.NotEq: ast.Eq(),
        ast.IsNot: ast.Is(),
        ast.NotIn: ast.In(),
        ast.Gt: ast.LtE(),
        ast.GtE: ast.Lt(),
    }
    made = ast.Compare(test.left, [opposite[type(op)]], test.comparators)
    return ast.copy_location(made, test)


def _nodes(node: ast.AST, looped: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield everything in a function, and whether it runs more than once; functions inside it count as loops."""
    for child in ast.iter_child_nodes(node):
        inner = looped or isinstance(
            child,
            ast.For
            | ast.AsyncFor
            | ast.While
            | ast.FunctionDef
            | ast.AsyncFunctionDef
            | ast.Lambda
            | ast.comprehension,
        )
        yield child, inner
        yield from _nodes(child, inner)
