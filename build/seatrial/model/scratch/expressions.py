"""The walk through expressions: what names, attributes, elements and displays may hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from seatrial.model.scratch.guards import Guard, literal_holds
from seatrial.model.scratch.tensors import Argument, dtype_named
from seatrial.model.scratch.values import (
    SIXTEEN,
    UNKNOWN,
    Atom,
    Buffer,
    Callee,
    Dtype,
    Follower,
    Fresh,
    Instance,
    Value,
    as_items,
    element,
    join_all,
    of,
    taken,
)
from seatrial.model.scratch.walk import NO_GUARD, Frame, Walker

LAYERS_BY_NAME = frozenset({"no_compile_layers", "static_forward_context"})
"""Where an operator finds the layer that called it."""
VIEWS = frozenset({"T", "mT", "H", "mH", "data", "real"})


class Expressions(Walker):
    """Walk expressions."""

    def run(self, callee: Callee, arguments: Sequence[Argument], node: ast.expr) -> Value:
        """Walk a function that is called; :class:`seatrial.model.scratch.statements.Runner` does it."""
        raise NotImplementedError

    def value(self, node: ast.expr | None, frame: Frame) -> Value:  # noqa: PLR0911, PLR0912, C901 - one a kind of expression
        """Return what an expression may be; walks all of it."""
        match node:
            case None:
                return UNKNOWN
            case ast.Constant(value=bool() | None):
                return UNKNOWN
            case ast.Constant(value=str() | int() as const):
                return Value(const=const)
            case ast.Name():
                return self.name(node, frame)
            case ast.Attribute():
                return self.attribute(node, frame)
            case ast.Subscript():
                return self.subscript(node, frame)
            case ast.Call():
                return self.call(node, frame)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                if any(isinstance(item, ast.Starred) for item in elements):
                    return Value(items=(("*", join_all(self._starred(item, frame) for item in elements)),))
                return Value(parts=tuple(self.value(item, frame) for item in elements))
            case ast.Dict():
                return self._mapping(node, frame)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._either(test, body, orelse, frame)
            case ast.NamedExpr(target=ast.Name(id=name), value=inner):
                frame.env[name] = self.value(inner, frame)
                return frame.env[name]
            case ast.BoolOp(values=values):
                return self.fallback([self.value(item, frame) for item in values])
            case ast.Lambda():
                return of(Callee(node, "lambda", frame.home, tuple(frame.env.items())))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.BinOp(left=left, right=right):
                return self._arithmetic(self.value(left, frame), self.value(right, frame))
            case ast.UnaryOp(operand=inner) | ast.Starred(value=inner) | ast.Await(value=inner):
                return self.value(inner, frame)
            case ast.JoinedStr(values=values):
                pieces = [self.value(piece, frame).const for piece in values]
                return Value(const="".join(map(str, pieces))) if None not in pieces else UNKNOWN
            case ast.FormattedValue(value=inner):
                return self.value(inner, frame)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child, frame)
        return UNKNOWN

    def name(self, node: ast.Name, frame: Frame) -> Value:
        """Return what a name may hold."""
        if node.id in frame.env:
            return frame.env[node.id]
        if node.id in self.globals[frame.home]:
            return self.globals[frame.home][node.id]
        contents = self.library.homes[frame.home]
        if node.id in contents.functions:
            return of(Callee(contents.functions[node.id], node.id, frame.home))
        ref = contents.refs.get(node.id, node.id)
        return dtype_named(ref, node) or Value(ref=self.library.class_of(ref) or ref)

    def attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        """Return what an attribute may hold."""
        return self.attribute_of(node, self.value(node.value, frame))

    def attribute_of(self, node: ast.Attribute, base: Value) -> Value:
        """Return what an attribute of a known value may hold."""
        found = [self._member(atom.cls, node.attr, atom.after) for atom in base.atoms if isinstance(atom, Instance)]
        if found:
            seen = self._seen_from(node, join_all(found))
            return taken(seen, self.here()) if any(isinstance(atom, Buffer) for atom in seen.flat()) else seen
        if base.tensors:
            if node.attr == "dtype":
                return join_all(_dtype_of(atom) for atom in base.tensors)
            return Value(base.tensors) if node.attr in VIEWS else UNKNOWN
        if base.ref:
            ref = f"{base.ref}.{node.attr}"
            if base.ref in self.library.classes:
                return self._member(base.ref, node.attr)
            return dtype_named(ref, node) or Value(ref=ref)
        return of(Dtype("")) if node.attr.endswith("dtype") else UNKNOWN

    def _member(self, cls: str, name: str, after: str = "") -> Value:
        """Return an attribute or method of a class's instance."""
        if not after and name in self.attributes[cls]:
            return self.attributes[cls][name]
        for known in self.library.lineage(cls) if not after else ():
            if name in self.shared[known.name]:
                return self.shared[known.name][name]
        found = self.library.method(cls, name, after)
        if found is not None:
            owner, function = found
            callee = Callee(function, f"{owner.name}.{name}", owner.home, instance=cls)
            if any(isinstance(word, ast.Name) and word.id == "property" for word in function.decorator_list):
                return self.run(callee, [], ast.Name("self"))
            return of(callee)
        return self.attributes[cls].get("*", UNKNOWN)

    @staticmethod
    def _seen_from(node: ast.Attribute, value: Value) -> Value:
        """Return what an attribute holds, a parameter of another object under the name by which it is reached."""
        if value == UNKNOWN and node.attr.endswith("dtype"):
            return of(Dtype(""))
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return value
        if not any(isinstance(atom, Follower) for atom in value.atoms):
            return value
        name = ast.unparse(node)
        return value.map(
            lambda atom: replace(atom, name=name) if isinstance(atom, Follower) and atom.parameter else atom
        )

    def subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        """Return an element, or what a slice of a tensor keeps."""
        base, key = self.value(node.value, frame), self.value(node.slice, frame)
        if isinstance(node.value, ast.Attribute) and node.value.attr in LAYERS_BY_NAME and any(self.instances):
            return of(Instance(self.instances[-1]))
        if base.tensors:
            return Value(base.tensors, parts=base.parts)
        named = [base.ref, *(atom.name for atom in base.atoms if isinstance(atom, Callee))]
        if any(named):
            return Value(ref=f"{next(filter(None, named))}[]")
        if base.items is not None and key.const is None and ast.unparse(node.slice).endswith("dtype"):
            return element(base).map(lambda atom: Dtype("") if isinstance(atom, Dtype) else atom)
        if isinstance(node.slice, ast.Slice):
            return join_all([element(base)]) if base.parts is None else Value(items=(("*", element(base)),))
        return element(base, key.const)

    def _starred(self, node: ast.expr, frame: Frame) -> Value:
        value = self.value(node, frame)
        return element(value) if isinstance(node, ast.Starred) else value

    def _mapping(self, node: ast.Dict, frame: Frame) -> Value:
        pairs: list[tuple[str, Value]] = []
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, frame)
            if key is None:
                pairs += value.items or ()
            else:
                const = self.value(key, frame).const
                pairs.append((str(const) if const is not None else "*", value))
        return as_items(pairs)

    def _either(self, test: ast.expr, body: ast.expr, orelse: ast.expr, frame: Frame) -> Value:
        self.value(test, frame)
        found = []
        for expression, holds in ((body, True), (orelse, False)):
            guard = frame.scope().guard(test, holds)
            self.guards.append(NO_GUARD if self.plain else guard)
            found.append(self.value(expression, frame).map(partial(_unless_asked, guard)))
            self.guards.pop()
        return self.fallback(found)

    @staticmethod
    def fallback(values: Sequence[Value]) -> Value:
        """Return what one of several values may be; a dtype that stands in for one not given is not spelled out."""
        result = join_all(values)
        if any(not value.dtypes for value in values) or any(dtype.name == "" for dtype in result.dtypes):
            spelled = {atom for atom in result.dtypes if atom.name}
            return Value(
                (result.atoms - spelled) | ({Dtype("")} if spelled else set()),
                result.ref,
                None,
                result.parts,
                result.items,
            )
        return result

    @staticmethod
    def _arithmetic(left: Value, right: Value) -> Value:
        """Return what arithmetic keeps: one dtype, where the other side is no tensor or has the same."""
        if isinstance(left.const, str) or isinstance(right.const, str):
            return UNKNOWN
        if left.parts is not None or right.parts is not None:
            return (
                join_all([value for value in (left, right) if value.parts is not None])
                if left.parts == right.parts
                else UNKNOWN
            )
        tensors = left.tensors | right.tensors
        return Value(tensors) if not (left.tensors and right.tensors) else Value(left.tensors & right.tensors)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame) -> Value:
        before = dict(frame.env)
        found: list[tuple[str, Value]] = []
        for _ in self._turns(node.generators, frame):
            if isinstance(node, ast.DictComp):
                key = self.value(node.key, frame).const
                found.append((str(key) if key is not None else "*", self.value(node.value, frame)))
            else:
                found.append((str(len(found)), self.value(node.elt, frame)))
        frame.env.clear()
        frame.env.update(before)
        if isinstance(node, ast.DictComp):
            return as_items(found)
        return Value(parts=tuple(value for _, value in found))

    def _turns(self, generators: Sequence[ast.comprehension], frame: Frame) -> Iterator[None]:
        if not generators:
            yield
            return
        for item in self.elements(self.value(generators[0].iter, frame)):
            self.bind(generators[0].target, item, frame)
            yield from self._turns(generators[1:], frame)

    def elements(self, value: Value) -> list[Value]:
        """Return what a loop over a value meets, one turn each; any of them at once where they are not known."""
        if value.parts is not None and len(value.parts) <= 64:
            return list(value.parts)
        if value.items is not None and "*" not in dict(value.items):
            return [Value(const=key) for key, _ in value.items]
        return [element(value)]

    def bind(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind a target of an assignment; :class:`Runner` does it."""
        raise NotImplementedError

    def arguments(self, node: ast.Call, frame: Frame) -> list[Argument]:
        """Return the arguments of a call, those behind `**` one by one."""
        found = []
        for position, item in enumerate(node.args):
            if isinstance(item, ast.Starred):
                inner = self.value(item.value, frame)
                known = inner.parts if inner.parts is not None else (element(inner),)
                found += [Argument(str(position + more), part, item, True) for more, part in enumerate(known)]
            else:
                found.append(Argument(str(position), self.value(item, frame), item))
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                found.append(Argument(keyword.arg, value, keyword.value))
            else:
                found += [Argument(key, part, keyword.value, True) for key, part in value.items or ()]
        return found

    def call(self, node: ast.Call, frame: Frame) -> Value:
        """Return what a call may give; a kernel's arguments are written down."""
        base = UNKNOWN
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value, frame)
            function = self.attribute_of(node.func, base)
        else:
            function = self.value(node.func, frame)
        return self.apply(function, base, self.arguments(node, frame), node, frame)

    def apply(self, function: Value, base: Value, arguments: list[Argument], node: ast.Call, frame: Frame) -> Value:
        """Return what calling a value with some arguments may give; `base` is what it is an attribute of."""
        raise NotImplementedError


def _unless_asked(guard: Guard, atom: Atom) -> Atom:
    """Return a dtype as one that is not spelled out where the model is known to have it."""
    asked = isinstance(atom, Dtype) and atom.name in SIXTEEN and literal_holds([guard], atom.name)
    return Dtype("") if asked else atom


def _dtype_of(atom: Atom) -> Value:
    match atom:
        case Buffer(site=site):
            return of(Dtype(site.dtype, site.literal_span, atom))
        case Follower():
            return of(Dtype("", tensor=atom))
        case Fresh(default=True):
            return of(Dtype(""))
    return of(Dtype("another"))
