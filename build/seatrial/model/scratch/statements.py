"""The walk through a function's statements: what names and attributes hold afterwards, and how a block ends."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from seatrial.model.scratch.calls import Caller
from seatrial.model.scratch.guards import DTYPE, Scope
from seatrial.model.scratch.tensors import Argument
from seatrial.model.scratch.values import (
    UNKNOWN,
    Buffer,
    Callee,
    Instance,
    Value,
    assigned,
    element,
    join,
    join_all,
    of,
)
from seatrial.model.scratch.walk import DEEPEST, Frame, WorthwhileError

_ANOTHERS = re.compile(r"cache|ssm|conv_state|quant|scale|kv_|weight")
"""Stands in the names of dtypes that are not the model's."""
End = Literal["", "return", "raise", "loop"]
"""How a block ends: it falls through, or leaves the function or the turn of a loop."""


class Runner(Caller):
    """Walk functions."""

    def run(self, callee: Callee, arguments: Sequence[Argument], node: ast.expr) -> Value:
        """Walk a function that is called with some arguments; return what it may give back."""
        if self.budget <= 0 or len(self.stack) > DEEPEST or sum(one is callee.node for one in self.stack) > 1:
            return UNKNOWN
        self.budget -= 1
        owner = callee.name.rpartition(".")[0] if callee.instance else ""
        env = dict(callee.closure)
        frame = Frame(callee.name, owner, callee.instance, callee.home, env, partial(self.scope, callee, env, owner))
        self._bind_parameters(callee, arguments, frame)
        if self.stack:
            self.followed.add(callee.name)
        self.stack.append(callee.node)
        self.instances.append(callee.instance or next(reversed(self.instances), ""))
        depth = len(self.guards)
        self.entries.append((callee.name, depth))
        if isinstance(callee.node, ast.Lambda):
            frame.returned.append(self.value(callee.node.body, frame))
        else:
            self.block(callee.node.body, frame)
        del self.guards[depth:]
        self.entries.pop()
        self.stack.pop()
        self.instances.pop()
        return join_all(frame.returned)

    def scope(self, callee: Callee, env: dict[str, Value], owner: str) -> Scope:
        """Return what reads the conditions of a function."""
        bindings = self.bindings(callee.node)
        plain = Frame(
            "", owner, callee.instance, callee.home, env, lambda: Scope(bindings, lambda _: None, lambda _: ())
        )

        def dtype_of(node: ast.expr) -> str | None:
            held = list(self.value(node, plain).dtypes) if isinstance(node, ast.Attribute | ast.Name) else []
            if len(held) == 1 and (held[0].name or held[0].tensor):
                return held[0].name
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            return "" if name.endswith("dtype") and not _ANOTHERS.search(ast.unparse(node)) else None

        def outer(node: ast.expr) -> Iterator[ast.expr]:
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    yield from self.library.defined(callee.instance, name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                    found = self.library.method(callee.instance, name)
                    yield from _only_return(found[1]) if found else ()
                case ast.Call(func=ast.Name(id=name)) if name in self.library.homes[callee.home].functions:
                    yield from _only_return(self.library.homes[callee.home].functions[name])

        return Scope(bindings, dtype_of, outer)

    def _bind_parameters(self, callee: Callee, arguments: Sequence[Argument], frame: Frame) -> None:
        spec = callee.node.args
        names = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
        if callee.instance and not _is_static(callee.node) and names:
            frame.env[names.pop(0)] = of(Instance(callee.instance))
        defaults = dict(
            zip(reversed([arg.arg for arg in (*spec.posonlyargs, *spec.args)]), reversed(spec.defaults), strict=False)
        )
        defaults |= {arg.arg: value for arg, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if value}
        given: dict[str, Value] = {}
        extra: list[tuple[str, Value]] = []
        rest: list[Value] = []
        for argument in arguments:
            if not argument.name.isdigit():
                if argument.name in names or any(argument.name == arg.arg for arg in spec.kwonlyargs):
                    given[argument.name] = argument.value
                else:
                    extra.append((argument.name, argument.value))
            elif int(argument.name) < len(names):
                given[names[int(argument.name)]] = argument.value
            else:
                rest.append(argument.value)
        for name in [*names, *(arg.arg for arg in spec.kwonlyargs)]:
            default = defaults.get(name)
            frame.env[name] = given[name] if name in given else self.value(default, frame) if default else UNKNOWN
        if spec.vararg is not None:
            frame.env[spec.vararg.arg] = Value(parts=tuple(rest))
        if spec.kwarg is not None:
            frame.env[spec.kwarg.arg] = Value(items=tuple(dict(extra).items()))

    # Blocks

    def block(self, body: Sequence[ast.stmt], frame: Frame) -> End:
        """Walk some statements in order; tell how they end."""
        depth = len(self.guards)
        whole = len(self.stack) == 1 and frame.function.endswith(".__init__") and not depth
        end: End = ""
        for statement in body:
            end = self.statement(statement, frame)
            if end:
                break
        if whole:
            self.settled[frame.cls] = tuple(self.guards)
        del self.guards[depth:]
        return end

    def statement(self, node: ast.stmt, frame: Frame) -> End:  # noqa: PLR0911, PLR0912, C901 - one a kind of statement
        """Walk one statement."""
        match node:
            case ast.If():
                return self._if(node, frame)
            case ast.Return(value=value):
                frame.returned.append(self.value(value, frame))
                return "return"
            case ast.Raise():
                return "raise"
            case ast.Break() | ast.Continue():
                return "loop"
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, frame)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    held = self.value(item.context_expr, frame)
                    if item.optional_vars is not None:
                        self.bind(item.optional_vars, held, frame)
                return self.block(node.body, frame)
            case ast.Try():
                return self._try(node, frame)
            case ast.Match():
                return self._match(node, frame)
            case ast.Assert(test=test):
                self.value(test, frame)
                self._from_here(test, True, frame, "raise")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                frame.env[node.name] = of(Callee(node, node.name, frame.home, tuple(frame.env.items())))
            case _:
                self._simple(node, frame)
        return ""

    def _simple(self, node: ast.stmt, frame: Frame) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                held = self.value(value, frame)
                for target in targets:
                    self.bind(target, held, frame)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.bind(target, self.value(value, frame), frame)
            case ast.AugAssign(target=target, value=value):
                self.value(value, frame)
                self.value(target, frame)
            case ast.Expr(value=value):
                self.value(value, frame)
                match value:
                    case ast.Call(func=ast.Attribute(attr="_check"), args=[test, *_]):
                        self._from_here(test, True, frame, "raise")

    def _from_here(self, test: ast.expr, holds: bool, frame: Frame, end: End) -> None:
        """Let what a check leaves hold for the rest of the block.

        That two tensors agree is no news where the other case only raises: the crash has another name then.
        """
        guard = self.guard(test, holds, frame, branch=False)
        if end == "raise":
            guard = replace(guard, facts=guard.facts - {(DTYPE, True)})
        self.guards.append(guard)

    def _if(self, node: ast.If, frame: Frame) -> End:
        self.value(node.test, frame)
        before = dict(frame.env)
        self.guards.append(self.guard(node.test, True, frame))
        first = self.block(node.body, frame)
        after = dict(frame.env)
        frame.env.clear()
        frame.env.update(before)
        self.guards[-1] = self.guard(node.test, False, frame)
        second = self.block(node.orelse, frame)
        self.guards.pop()
        if first and second:
            return first if first == second else "loop" if "loop" in (first, second) else "return"
        if first:
            self._from_here(node.test, False, frame, first)
        elif second:
            frame.env.clear()
            frame.env.update(after)
            self._from_here(node.test, True, frame, second)
        else:
            self._merge(frame, after)
        return ""

    @staticmethod
    def _merge(frame: Frame, other: dict[str, Value]) -> None:
        """Let names hold what they do after either of two ways."""
        for name, value in other.items():
            frame.env[name] = join(frame.env[name], value) if name in frame.env else value

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, frame: Frame) -> End:
        turns: list[Value | None] = [None]
        if not isinstance(node, ast.While):
            turns = [*self.elements(self.value(node.iter, frame))]
        else:
            self.value(node.test, frame)
        if len(turns) == 1:
            turns *= 2  # what one turn leaves, the next one meets
        before = dict(frame.env)
        for item in turns:
            if item is not None and not isinstance(node, ast.While):
                self.bind(node.target, item, frame)
            self.block(node.body, frame)
        self._merge(frame, before)
        self.block(node.orelse, frame)
        return ""

    def _try(self, node: ast.Try, frame: Frame) -> End:
        before = dict(frame.env)
        end = self.block([*node.body, *node.orelse], frame)
        after = dict(frame.env)
        ends = [end]
        for handler in node.handlers:
            frame.env.clear()
            frame.env.update(before)
            self._merge(frame, after)
            ends.append(self.block(handler.body, frame))
            if not ends[-1]:
                self._merge_into(after, frame.env)
        frame.env.clear()
        frame.env.update(after)
        last = self.block(node.finalbody, frame)
        return last or (end if all(ends) else "")

    @staticmethod
    def _merge_into(target: dict[str, Value], other: dict[str, Value]) -> None:
        for name, value in other.items():
            target[name] = join(target[name], value) if name in target else value

    def _match(self, node: ast.Match, frame: Frame) -> End:
        self.value(node.subject, frame)
        before = dict(frame.env)
        after = dict(before)
        for case in node.cases:
            frame.env.clear()
            frame.env.update(before)
            if not self.block(case.body, frame):
                self._merge_into(after, frame.env)
        frame.env.clear()
        frame.env.update(after)
        return ""

    # Binding

    def bind(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind a target of an assignment to a value."""
        match target:
            case ast.Name(id=name):
                frame.env[name] = assigned(value, name, frame.owner, attribute=False)
            case ast.Attribute(value=owner, attr=name):
                self.hold(self.value(owner, frame), name, value, frame)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for place, item in enumerate(elements):
                    inner = item.value if isinstance(item, ast.Starred) else item
                    part = element(value, place) if value.parts or value.items else Value(value.tensors)
                    self.bind(inner, part, frame)
            case ast.Subscript(value=owner, slice=key):
                if not self.value(owner, frame).tensors:
                    const = self.value(key, frame).const
                    held = Value(items=((str(const) if const is not None else "*", value),))
                    if isinstance(owner, ast.Name | ast.Attribute):
                        self.bind(owner, join(self.value(owner, frame), held), frame)

    def hold(self, owner: Value, name: str, value: Value, frame: Frame) -> None:
        """Keep a value as an attribute of an object whose class is known."""
        if self.stop and any(isinstance(atom, Buffer) for atom in value.flat()):
            raise WorthwhileError
        for atom in owner.atoms:
            if isinstance(atom, Instance) and atom.cls in self.attributes:
                kept = self.attributes[atom.cls]
                named = assigned(value, f"self.{name}", frame.owner, attribute=True)
                kept[name] = join(kept[name], named) if name in kept else named


def _is_static(node: ast.AST) -> bool:
    return any(isinstance(word, ast.Name) and word.id == "staticmethod" for word in getattr(node, "decorator_list", []))


def _only_return(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    found = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    return found if len(found) == 1 else []
