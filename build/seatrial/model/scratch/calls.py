"""What calls do: allocate, cast, keep, go into a known function, or reach a kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import replace

from seatrial.model.modules import called
from seatrial.model.scratch.expressions import Expressions
from seatrial.model.scratch.found import Span
from seatrial.model.scratch.kernels import is_kernel, takes_float16_alone
from seatrial.model.scratch.tensors import Argument, Place, allocated, cast, kept
from seatrial.model.scratch.values import (
    UNKNOWN,
    Buffer,
    Callee,
    Follower,
    Fresh,
    Instance,
    Partial,
    Value,
    as_items,
    element,
    join,
    join_all,
    of,
)
from seatrial.model.scratch.walk import Frame, Reached, WorthwhileError

HELD = frozenset({"register_buffer", "setattr", "register_parameter"})


class Caller(Expressions):
    """Follow calls."""

    def apply(self, function: Value, base: Value, arguments: list[Argument], node: ast.Call, frame: Frame) -> Value:
        """Return what calling a value with some arguments may give; `base` is what it is an attribute of."""
        found = [self._into(atom, arguments, node, frame) for atom in sorted(function.atoms, key=_order)]
        followed = [value for value in found if value is not None]
        if followed:
            return join_all(followed)
        name = called(node)
        if name == "super" and frame.cls:
            named = arguments[0].value.ref if arguments else ""
            return of(Instance(frame.cls, after=named.rpartition(".")[2] or frame.owner))
        if "." in function.ref or function.ref.endswith("[]") or function.ref in self.library.classes:
            return self._outside(function.ref, arguments, node, frame)
        if base.tensors:
            place = self._place(node, frame)
            for rule in (cast, allocated):
                made = rule(name, base, arguments, place)
                if made is not None:
                    return made
            made = kept(name, base, arguments)
            return made if made is not None else UNKNOWN
        built_in = self._built_in(name, base, arguments, node, frame)
        if built_in is None and self.stop and any(_holds_buffer(argument.value) for argument in arguments):
            raise WorthwhileError  # it may be an object of a class from elsewhere
        return built_in if built_in is not None else self._passed(node, arguments)

    def _place(self, node: ast.Call, frame: Frame) -> Place:
        if not self.plain:
            self.made.setdefault((frame.home, Span.of(node)), []).append(tuple(self.guards))
        return Place(node, frame.function, frame.owner, frame.home, self.here())

    def _into(self, atom: object, arguments: list[Argument], node: ast.Call, frame: Frame) -> Value | None:
        """Return what a callee whose body is known gives, None for anything else."""
        match atom:
            case Callee():
                if _is_kernel_of_triton(atom):
                    self._reach(atom.name, arguments, node, frame)
                    return UNKNOWN
                return self.run(atom, arguments, node)
            case Partial(function=function, positional=positional, keywords=keywords):
                given = {argument.name for argument in arguments}
                early = [Argument(str(place), value, node, True) for place, value in enumerate(positional)]
                late = [
                    Argument(str(int(item.name) + len(early)), item.value, item.node) if item.name.isdigit() else item
                    for item in arguments
                ]
                known = [Argument(key, value, node, True) for key, value in keywords if key not in given]
                return self.apply(function, UNKNOWN, [*early, *late, *known], node, frame)
            case Instance(cls=cls):
                found = self.library.method(cls, "forward") or self.library.method(cls, "__call__")
                if found is not None:
                    owner, body = found
                    return self.run(
                        Callee(body, f"{owner.name}.{body.name}", owner.home, instance=cls), arguments, node
                    )
        return None

    def _outside(  # noqa: PLR0911 - one a kind of callable
        self, ref: str, arguments: list[Argument], node: ast.Call, frame: Frame
    ) -> Value:
        """Return what an imported callable gives."""
        last = ref.rpartition(".")[2]
        plain = ref.removesuffix("[]")
        first = join_all(argument.value for argument in arguments[:1])
        if ref in self.library.classes:
            return self._made_of(ref, arguments, node, frame)
        if last.endswith("Parameter"):
            return self._parameter(arguments)
        if ref.startswith("torch.") and not ref.startswith("torch.ops."):
            place = self._place(node, frame)
            for rule in (allocated, cast):
                made = rule(last, first if last.endswith("_like") else UNKNOWN, arguments, place)
                if made is not None:
                    return made
        if is_kernel(plain) or ref.endswith("[]") or (plain.startswith("torch.") and _gives_out(arguments)):
            self._reach(plain, arguments, node, frame)
            operator = self.operators.get(plain.removesuffix(".default"))
            return self.run(operator, arguments, node) if operator else self._out(plain, arguments)
        if last == "direct_register_custom_op":
            self._register(arguments)
            return UNKNOWN
        if ref == "functools.partial":
            keywords = tuple((item.name, item.value) for item in arguments if not item.name.isdigit())
            positional = tuple(item.value for item in arguments[1:] if item.name.isdigit())
            return of(Partial(first, positional, keywords))
        made = kept(last, UNKNOWN, arguments)
        return made if made is not None else self._passed(node, arguments)

    def _made_of(self, cls: str, arguments: Sequence[Argument], node: ast.Call, frame: Frame) -> Value:
        """Return an instance of a class; one that is no module keeps what it is given, by `__init__` or by field."""
        made = of(Instance(cls))
        if self.library.is_module(cls):
            return made
        found = self.library.method(cls, "__init__")
        if found is not None:
            owner, body = found
            self.run(Callee(body, f"{owner.name}.__init__", owner.home, instance=cls), arguments, node)
            return made
        fields = self.library.fields(cls)
        for argument in arguments:
            place = int(argument.name) if argument.name.isdigit() else -1
            name = fields[place] if 0 <= place < len(fields) else argument.name
            if name in fields:
                self.hold(made, name, argument.value, replace(frame, owner=cls))
        return made

    def _register(self, arguments: Sequence[Argument]) -> None:
        """Remember the body of a custom operator: calls of it go there."""
        given = {argument.name: argument.value for argument in arguments}
        name, body = given.get("op_name", given.get("0", UNKNOWN)), given.get("op_func", given.get("1", UNKNOWN))
        for atom in body.atoms:
            if isinstance(atom, Callee) and name.const:
                self.operators[f"torch.ops.vllm.{name.const}"] = atom

    @staticmethod
    def _parameter(arguments: Sequence[Argument]) -> Value:
        """Return a parameter: in the model's dtype unless another one is spelled out."""
        data = next((item.value for item in arguments if item.name in ("0", "data")), UNKNOWN)
        follows = data.tensors and all(
            atom.default if isinstance(atom, Fresh) else isinstance(atom, Follower) for atom in data.tensors
        )
        return of(Follower("a parameter", parameter=True)) if follows else UNKNOWN

    @staticmethod
    def _out(ref: str, arguments: Sequence[Argument]) -> Value:
        """Return what torch's functions give when they are told where to put it."""
        return join_all(item.value for item in arguments if item.name == "out") if ref.startswith("torch.") else UNKNOWN

    def _reach(self, kernel: str, arguments: list[Argument], node: ast.Call, frame: Frame) -> None:
        if self.stop:
            self._weigh(kernel, arguments, frame)
        self.reached.append(
            Reached(
                cls=frame.owner,
                home=frame.home,
                function=frame.function,
                kernel=kernel,
                call=Span.of(node),
                arguments=tuple(arguments),
                where=self.here(),
            )
        )

    def _weigh(self, kernel: str, arguments: Sequence[Argument], frame: Frame) -> None:
        """End a quick walk where a kernel is given a buffer beside what could make a fault of it."""
        held = [argument.value.flat() for argument in arguments]
        mixed = any(_has(atoms, Buffer) and _has(atoms, Follower) for atoms in held)
        atoms = frozenset().union(*held)
        parameter = any(isinstance(atom, Follower) and atom.parameter for atom in atoms) or (
            not self.library.is_whole(frame.cls)
            and any(isinstance(one.node, ast.Attribute) and one.value == UNKNOWN for one in arguments)
        )
        if _has(atoms, Buffer) and (mixed or parameter or takes_float16_alone(kernel)):
            raise WorthwhileError

    def _built_in(  # noqa: PLR0911, PLR0912, C901 - one a function
        self, name: str, base: Value, arguments: list[Argument], node: ast.Call, frame: Frame
    ) -> Value | None:
        """Return what Python's own functions and methods of containers give."""
        values = [argument.value for argument in arguments]
        match name, values:
            case "getattr", [owner, Value(const=str(attr)), *fallback]:
                made = ast.copy_location(ast.Attribute(node.args[0], attr, ast.Load()), node)
                found = self.attribute(made, frame)
                return self.fallback([found, *fallback]) if fallback and owner.ref != "torch" else found
            case "getattr", _:
                return UNKNOWN
            case ("setattr", [_, key, value]) | ("register_buffer" | "register_parameter", [key, value, *_]):
                owner = values[0] if name == "setattr" else base
                if any(isinstance(atom, Instance) for atom in owner.atoms):
                    self.hold(owner, str(key.const or "*"), value, frame)
                return UNKNOWN
            case "dict", _:
                pairs = [(item.name, item.value) for item in arguments if not item.name.isdigit()]
                return as_items([*(values[0].items or () if node.args else ()), *pairs])
            case "tuple" | "list" | "sorted" | "reversed" | "iter" | "set", [inner]:
                return inner
            case "zip", [*inner] if inner and all(item.parts is not None for item in inner):
                rows = zip(*(item.parts or () for item in inner), strict=False)
                return Value(parts=tuple(Value(parts=row) for row in rows))
            case "zip", _:
                return Value(items=(("*", Value(parts=tuple(element(item) for item in values))),))
            case "enumerate", [inner, *_]:
                counted = enumerate(self.elements(inner))
                return Value(parts=tuple(Value(parts=(Value(const=number), item)) for number, item in counted))
            case (("next" | "max" | "min" | "pop" | "popitem"), _):
                return element(base) if base != UNKNOWN else join_all(element(item) for item in values[:1])
            case "items", [] if base.items is not None:
                return Value(parts=tuple(Value(parts=(Value(const=key), item)) for key, item in base.items))
            case "values", [] if base.items is not None:
                return Value(parts=tuple(item for _, item in base.items))
            case "get", [key, *fallback] if base.items is not None:
                return self.fallback([element(base, key.const), *fallback]) if fallback else element(base, key.const)
            case (("append" | "add" | "update" | "setdefault" | "extend" | "insert"), [*_, value]):
                if isinstance(node.func, ast.Attribute):
                    inner = element(value) if name in ("update", "extend") else value
                    self.bind(node.func.value, join(base, Value(items=(("*", inner),))), frame)
                return element(base, values[0].const) if name == "setdefault" else UNKNOWN
        return None

    @staticmethod
    def _passed(node: ast.Call, arguments: Sequence[Argument]) -> Value:
        """Return what comes back from a callable that is not known.

        A tensor that was made for the call alone is taken to come back from it; a module that is called with
        activations gives activations.
        """
        fresh = {
            atom
            for argument in arguments
            for atom in argument.value.flat()
            if isinstance(atom, Buffer) and not atom.target
        }
        kept_on = set()
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name | ast.Attribute):
            first = join_all(argument.value for argument in arguments[:1])
            kept_on = {atom for atom in first.atoms if isinstance(atom, Follower) and not atom.parameter}
        return Value(frozenset(fresh | kept_on))

    def hold(self, owner: Value, name: str, value: Value, frame: Frame) -> None:
        """Keep a value as an attribute of an object."""
        raise NotImplementedError


def _has(atoms: Iterable[object], kind: type) -> bool:
    return any(isinstance(atom, kind) for atom in atoms)


def _holds_buffer(value: Value) -> bool:
    return _has(value.flat(), Buffer)


def _gives_out(arguments: Sequence[Argument]) -> bool:
    return any(argument.name == "out" for argument in arguments)


def _order(atom: object) -> str:
    return f"{type(atom).__name__} {getattr(atom, 'name', '')}"


def _is_kernel_of_triton(callee: Callee) -> bool:
    decorators = getattr(callee.node, "decorator_list", [])
    return any("triton" in ast.unparse(word) for word in decorators)
