"""Walk the functions of a Python module with values that are known in part, so that a detector need not import it.

Conditions that are not known are taken both ways, and what then differs is unknown. A way that raises ends; a
function all of whose ways raise *refuses*. Loops run at most once. The result never claims more than the source
says: what the walk does not understand is unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEEPEST = 8
"""Calls within calls that are followed; what lies below is unknown."""


@dataclass(frozen=True)
class Thing:
    """An object of which some attributes are known; a closed one has no others."""

    name: str
    attributes: tuple[tuple[str, Any], ...] = ()
    closed: bool = False


@dataclass(frozen=True)
class Function:
    """A function of the module; a method is given SELF as its first argument."""

    name: str
    method: bool = False


UNKNOWN = Thing("unknown")
SELF = Thing("self")

Env = dict[str, Any]
"""Names to values. Those that begin with a dot are settings, which a called function shares with its caller."""


class RefusedError(Exception):
    """Every way through a called function raises."""


def truth(value: Any) -> bool | None:
    """Return whether a value is true; None if that is unknown."""
    if value is UNKNOWN:
        return None
    return bool(value)


def join(left: Env | None, right: Env | None) -> Env | None:
    """Return what holds after either of two ways; None stands for a way that ends before."""
    if left is None or right is None:
        return right if left is None else left
    return {name: left[name] if left[name] == right.get(name, UNKNOWN) else UNKNOWN for name in left}


def settings(env: Env) -> Env:
    """Return the settings alone."""
    return {name: value for name, value in env.items() if name.startswith(".")}


class Interpreter:
    """Interpret functions of one module; a detector says in a subclass what it knows of the world outside.

    Args:
        tree: the module's syntax tree.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        self._returns: list[list[tuple[Env, Any]]] = []

    def name(self, name: str) -> Any:
        """Return the value of a name that the module does not bind."""
        return UNKNOWN

    def attribute(self, base: Any, name: str, env: Env, default: Any = UNKNOWN) -> Any:
        """Return an attribute of a value; `default` where it is known not to be there."""
        if base is SELF and name in self.functions:
            return Function(name, method=True)
        if isinstance(base, Thing):
            return dict(base.attributes).get(name, default if base.closed else UNKNOWN)
        return UNKNOWN

    def set_attribute(self, base: Any, name: str, value: Any, env: Env) -> None:
        """Note an assignment to an attribute; by default it is forgotten."""

    def item(self, base: Any, key: Any) -> Any:
        """Return an item of a value."""
        return UNKNOWN

    def outside(self, function: Any, name: str, values: Sequence[Any]) -> Any:
        """Return the result of a call that leaves the module; `name` is empty where a value is called."""
        return UNKNOWN

    def call(self, name: str, values: Sequence[Any], named: Mapping[str, Any], env: Env) -> Any:
        """Run a function; its effect on the settings lands in `env`.

        Raises:
            RefusedError: no way through it comes back.
        """
        function = self.functions.get(name)
        if function is None or len(self._returns) > DEEPEST:
            return UNKNOWN
        spec = function.args
        names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        inner = settings(env) | dict.fromkeys((*names, *(argument.arg for argument in spec.kwonlyargs)), UNKNOWN)
        for argument, default in zip(reversed(names), reversed(spec.defaults), strict=False):
            inner[argument] = self.value(default, inner)
        inner |= dict(zip(names, values, strict=False)) | dict(named)
        self._returns.append([])
        last = self.block(function.body, inner)
        ways = self._returns.pop() + ([] if last is None else [(last, None)])
        if not ways:
            raise RefusedError
        after: Env | None = None
        for way, _ in ways:
            after = join(after, settings(way))
        env.update(after or {})
        results = [result for _, result in ways]
        return results[0] if all(result == results[0] for result in results) else UNKNOWN

    def block(self, body: Sequence[ast.stmt], env: Env | None) -> Env | None:
        """Run statements and return what holds after them; None if no way comes out."""
        for statement in body:
            if env is None:
                return None
            try:
                env = self._statement(statement, env)
            except RefusedError:
                return None
        return env

    def _statement(self, node: ast.stmt, env: Env) -> Env | None:
        match node:
            case ast.Assign(value=bound) | ast.AnnAssign(value=ast.expr() as bound):
                value = self.value(bound, env)
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assign(target, value, env)
            case ast.AugAssign():
                self._assign(node.target, UNKNOWN, env)
            case ast.Expr():
                self.value(node.value, env)
            case ast.Assert():
                return None if truth(self.value(node.test, env)) is False else env
            case ast.Raise() | ast.Break() | ast.Continue():
                return None
            case ast.Return():
                self._returns[-1].append((env, self.value(node.value, env) if node.value else None))
                return None
            case _:
                return self._compound(node, env)
        return env

    def _compound(self, node: ast.stmt, env: Env) -> Env | None:
        after: Env | None = env
        match node:
            case ast.If():
                test = truth(self.value(node.test, env))
                yes = None if test is False else self.block(node.body, dict(env))
                after = join(yes, None if test is True else self.block(node.orelse, dict(env)))
            case ast.For() | ast.While():
                inner = dict(env)
                if isinstance(node, ast.For):
                    self._assign(node.target, UNKNOWN, inner)
                after = join(env, self.block(node.body, inner))
            case ast.With():
                after = self.block(node.body, env)
            case ast.Match():
                for case in node.cases:
                    after = join(after, self.block(case.body, dict(env)))
            case ast.Try():
                after = self.block([*node.body, *node.orelse], dict(env))
                for handler in node.handlers:
                    after = join(after, self.block(handler.body, dict(env)))
                after = self.block(node.finalbody, after)
        return after

    def _assign(self, target: ast.expr, value: Any, env: Env) -> None:
        match target:
            case ast.Name():
                env[target.id] = value
            case ast.Attribute():
                self.set_attribute(self.value(target.value, env), target.attr, value, env)
            case ast.Tuple() | ast.List():
                whole = isinstance(value, tuple) and len(value) == len(target.elts)
                for part, item in zip(target.elts, value if whole else [UNKNOWN] * len(target.elts), strict=True):
                    self._assign(part, item, env)

    def value(self, node: ast.expr, env: Env) -> Any:  # noqa: PLR0911 - one return a kind of expression
        """Return an expression's value as far as it is known."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                fallback = Function(node.id) if node.id in self.functions else self.name(node.id)
                return env.get(node.id, fallback)
            case ast.Attribute():
                return self.attribute(self.value(node.value, env), node.attr, env)
            case ast.Subscript():
                return self.item(self.value(node.value, env), self.value(node.slice, env))
            case ast.Call():
                return self._call(node, env)
            case ast.NamedExpr():
                env[node.target.id] = self.value(node.value, env)
                return env[node.target.id]
            case ast.Tuple() | ast.List() | ast.Set():
                return tuple(self.value(item, env) for item in node.elts)
            case ast.GeneratorExp() | ast.ListComp() | ast.SetComp() if len(node.generators) == 1:
                return self._each(node.generators[0], node.elt, env)
        return self._logic(node, env)

    def _logic(self, node: ast.expr, env: Env) -> Any:
        match node:
            case ast.Compare(ops=[operator], comparators=[other]):
                return _compare(self.value(node.left, env), operator, self.value(other, env))
            case ast.UnaryOp(op=ast.Not()):
                test = truth(self.value(node.operand, env))
                return UNKNOWN if test is None else not test
            case ast.IfExp():
                test = truth(self.value(node.test, env))
                return UNKNOWN if test is None else self.value(node.body if test else node.orelse, env)
            case ast.BoolOp():
                unsure, value = False, UNKNOWN
                for part in node.values:
                    value = self.value(part, env)
                    if truth(value) is isinstance(node.op, ast.Or):
                        return value
                    unsure = unsure or truth(value) is None
                return UNKNOWN if unsure else value
        return UNKNOWN

    def _call(self, node: ast.Call, env: Env) -> Any:
        values = [self.value(argument, env) for argument in node.args]
        named = {word.arg: self.value(word.value, env) for word in node.keywords if word.arg}
        function = self.value(node.func, env)
        if isinstance(function, Function):
            return self.call(function.name, [SELF, *values] if function.method else values, named, env)
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        found = self._builtin(called, values, env)
        return self.outside(function, called, values) if found is UNKNOWN else found

    def _builtin(self, name: str, values: Sequence[Any], env: Env) -> Any:  # noqa: PLR0911 - one a function
        match name, values:
            case "getattr", [base, str(attribute), *default]:
                return self.attribute(base, attribute, env, *default[:1])
            case "hasattr", [base, str(attribute)]:
                missing = Thing("missing")
                found = self.attribute(base, attribute, env, missing)
                return UNKNOWN if found is UNKNOWN else found is not missing
            case "isinstance", [tuple(), _]:
                return True
            case "bool", [value] if truth(value) is not None:
                return truth(value)
            case (("set" | "tuple" | "list" | "frozenset"), [tuple() as value]):
                return value
            case "str", [str() as value]:
                return value
            case (("any" | "all"), [tuple() as items]):
                tests = {truth(item) for item in items}
                sought = name == "any"
                return sought if sought in tests else UNKNOWN if None in tests else not sought
        return UNKNOWN

    def _each(self, loop: ast.comprehension, element: ast.expr, env: Env) -> Any:
        items = self.value(loop.iter, env)
        if not isinstance(items, tuple):
            return UNKNOWN
        found = []
        for item in items:
            inner = dict(env)
            self._assign(loop.target, item, inner)
            tests = [truth(self.value(test, inner)) for test in loop.ifs]
            if None in tests:
                return UNKNOWN
            if all(tests):
                found.append(self.value(element, inner))
        return tuple(found)


def _compare(left: Any, operator: ast.cmpop, right: Any) -> Any:
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    match operator:
        case ast.Eq() | ast.Is():
            return left == right
        case ast.NotEq() | ast.IsNot():
            return left != right
        case ast.In() | ast.NotIn() if isinstance(right, tuple):
            found = left in right
            if not found and UNKNOWN in right:
                return UNKNOWN
            return found == isinstance(operator, ast.In)
    return UNKNOWN
