"""What torch's own calls make of the values that they are given."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seatrial.model.scratch.found import Form, Span
from seatrial.model.scratch.kernels import ALLOCATORS, CASTS, KEEPERS
from seatrial.model.scratch.values import (
    OTHER_DTYPES,
    SIXTEEN,
    UNKNOWN,
    Buffer,
    Dtype,
    Follower,
    Fresh,
    Site,
    Taken,
    Value,
    join_all,
    of,
)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call, as the walk saw it."""

    name: str
    """The keyword, or the position."""
    value: Value
    node: ast.expr
    spread: bool = False
    """It comes out of `*` or `**`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands."""

    node: ast.Call
    function: str
    cls: str
    home: str
    taken: Taken


def dtype_named(ref: str, node: ast.expr) -> Value | None:
    """Return the dtype that a dotted name of torch's is, None for anything else."""
    owner, _, name = ref.rpartition(".")
    if owner != "torch":
        return None
    if name in SIXTEEN:
        return of(Dtype(SIXTEEN[name], Span.of(node)))
    return of(Dtype(name)) if name in OTHER_DTYPES else None


def allocated(name: str, base: Value, arguments: Sequence[Argument], place: Place) -> Value | None:
    """Return what an allocator makes, None if the name is not that of one."""
    if name not in ALLOCATORS:
        return None
    given = [(argument, dtype) for argument in arguments for dtype in sorted(argument.value.dtypes, key=repr)]
    like = name.endswith("_like")
    source = join_all([base, *(argument.value for argument in arguments[:1] if like)])
    if not given:
        for argument in arguments:
            if argument.name == "dtype":
                return of(Fresh(default=ast.unparse(argument.node).endswith("dtype")))
        if like or name.startswith("new_"):
            kept = frozenset(atom for atom in source.tensors if not isinstance(atom, Fresh))
            return Value(kept) if kept else of(Fresh(default=Fresh(default=True) in source.atoms))
        return of(Fresh(default=name not in ("arange", "tensor", "eye")))
    return join_all(_allocated_in(dtype, argument, place) for argument, dtype in given)


def _allocated_in(dtype: Dtype, argument: Argument, place: Place) -> Value:
    if dtype.tensor is not None:
        return of(_renewed(dtype.tensor, place))
    if dtype.name not in SIXTEEN:
        return of(Fresh(default=not dtype.name))
    form: Form = "keywords" if argument.spread else "argument"
    return of(_buffer(dtype, form, Span.of(argument.node), place))


def _renewed(tensor: Buffer | Follower, place: Place) -> Buffer | Follower:
    return replace(tensor, taken=place.taken) if isinstance(tensor, Buffer) else tensor


def _buffer(dtype: Dtype, form: Form, span: Span, place: Place) -> Buffer:
    literal = dtype.literal_span or span
    site = Site(SIXTEEN[dtype.name], form, span, literal, Span.of(place.node), place.function, place.home)
    return Buffer(site, place.cls, taken=place.taken)


def cast(name: str, base: Value, arguments: Sequence[Argument], place: Place) -> Value | None:
    """Return what a change of dtype makes of a tensor, None if the name is not that of one.

    A tensor that is cast while it is fresh counts as allocated in that dtype; of any other only the dtype is kept.
    """
    if name in CASTS and not arguments:
        literal = Dtype(CASTS[name], Span.of(place.node))
        return _cast_to(literal, "method", Span.of(place.node), base, place)
    if name not in ("to", "type"):
        return None
    given = [(argument, dtype) for argument in arguments for dtype in argument.value.dtypes]
    if not given:
        plain = [argument for argument in arguments if argument.name in ("dtype", "0")]
        tensors = frozenset().union(*(argument.value.tensors for argument in plain))
        return Value(tensors) if tensors else Value(base.tensors)
    return join_all(_cast_to(dtype, "cast", Span.of(argument.node), base, place) for argument, dtype in given)


def _cast_to(dtype: Dtype, form: Form, span: Span, base: Value, place: Place) -> Value:
    if dtype.tensor is not None:
        return of(dtype.tensor)
    fresh = any(
        not atom.cast if isinstance(atom, Fresh) else isinstance(atom, Buffer) and not atom.target
        for atom in base.atoms
    )
    if dtype.name in SIXTEEN and fresh:
        return of(_buffer(dtype, form, span, place))
    return of(Fresh(default=not dtype.name, cast=True))


def kept(name: str, base: Value, arguments: Sequence[Argument]) -> Value | None:
    """Return the tensors that a view, copy or split keeps, None if the name is not that of one."""
    if name not in KEEPERS:
        return None
    if name == "view" and any(argument.value.dtypes for argument in arguments):
        return UNKNOWN
    if base.tensors:
        return Value(base.tensors)
    first = join_all(argument.value for argument in arguments[:1])
    return Value(frozenset(atom for atom in first.flat() if isinstance(atom, Buffer | Follower | Fresh)))
