"""What the walk knows of a value: what it may hold of 16-bit buffers, dtypes, tensors in the model's dtype."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from seatrial.model.scratch.found import Form, Span
from seatrial.model.scratch.guards import Guard

SIXTEEN = {"float16": "float16", "half": "float16", "bfloat16": "bfloat16"}
"""Names of torch's 16-bit dtypes."""
# fmt: off
OTHER_DTYPES = frozenset({
    "float32", "float", "float64", "double", "int8", "uint8", "int16", "short", "int32", "int", "int64", "long",
    "bool", "uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Site:
    """An allocating call, and where its dtype comes from."""

    dtype: str
    form: Form
    dtype_span: Span
    literal_span: Span
    call_span: Span
    function: str
    home: str
    """Path of the module."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Where a buffer was last read from an attribute, or allocated."""

    method: str
    """The forward method that was being run, by `CLASS.METHOD`."""
    branch: Guard | None
    """The innermost branch of that run."""
    guards: tuple[Guard, ...]
    """Everything that held."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor with a literal 16-bit dtype."""

    site: Site
    cls: str
    target: str = ""
    taken: Taken | None = None


@dataclass(frozen=True, slots=True)
class Follower:
    """A tensor in the model's dtype: a parameter, or the activations."""

    name: str
    parameter: bool = False


@dataclass(frozen=True, slots=True)
class Fresh:
    """A tensor just allocated, or cast, in another way than a Buffer is."""

    default: bool = False
    """In the model's dtype: none was given, or one that is not spelled out."""
    cast: bool = False
    """It is made of another tensor."""


@dataclass(frozen=True, slots=True)
class Dtype:
    """A dtype: `float16`, `bfloat16`, another's name, or empty for one that is not spelled in the source."""

    name: str
    literal_span: Span | None = None
    tensor: Buffer | Follower | None = None
    """The tensor that it was asked of."""


@dataclass(frozen=True, slots=True)
class Callee:
    """A function whose body the walk has, with the values that it closes over."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    name: str
    home: str
    """Path of the module that it stands in."""
    closure: tuple[tuple[str, Value], ...] = ()
    instance: str = ""
    """The class whose instance it is bound to."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A callable with some keywords given: `functools.partial`."""

    function: Value
    positional: tuple[Value, ...]
    keywords: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class whose body the walk has."""

    cls: str
    after: str = ""
    """Of `super()`: the class behind which methods are looked for."""


Atom = Buffer | Follower | Fresh | Dtype | Callee | Partial | Instance


@dataclass(frozen=True, slots=True)
class Value:
    """Everything that a name may hold; what is in none of the fields is unknown."""

    atoms: frozenset[Atom] = frozenset()
    ref: str = ""
    """Dotted name of what was imported."""
    const: str | int | None = None
    parts: tuple[Value, ...] | None = None
    """Of a tuple or list."""
    items: tuple[tuple[str, Value], ...] | None = None
    """Of a mapping with string keys; the key `*` stands for those that are not known."""

    @property
    def buffers(self) -> frozenset[Buffer]:
        """Return the 16-bit buffers among the atoms."""
        return frozenset(atom for atom in self.atoms if isinstance(atom, Buffer))

    @property
    def tensors(self) -> frozenset[Atom]:
        """Return the atoms that are tensors."""
        return frozenset(atom for atom in self.atoms if isinstance(atom, Buffer | Follower | Fresh))

    @property
    def dtypes(self) -> frozenset[Dtype]:
        """Return the dtypes among the atoms."""
        return frozenset(atom for atom in self.atoms if isinstance(atom, Dtype))

    def flat(self) -> frozenset[Atom]:
        """Return the atoms of the value and of everything in it."""
        if not (self.parts or self.items):
            return self.atoms
        inner = [*(self.parts or ()), *(value for _, value in self.items or ())]
        return self.atoms.union(*(value.flat() for value in inner))

    def map(self, change: Callable[[Atom], Atom]) -> Value:
        """Return the value with every atom changed, inside as well."""
        if not (self.atoms or self.parts or self.items):
            return self
        return replace(
            self,
            atoms=frozenset(change(atom) for atom in self.atoms),
            parts=None if self.parts is None else tuple(value.map(change) for value in self.parts),
            items=None if self.items is None else tuple((key, value.map(change)) for key, value in self.items),
        )


UNKNOWN = Value()


def of(*atoms: Atom) -> Value:
    """Return a value that holds some atoms."""
    return Value(frozenset(atoms))


def join(left: Value, right: Value) -> Value:
    """Return what holds when a name has either value."""
    if left == right:
        return left
    parts = left.parts if right == UNKNOWN or right.parts is None else right.parts
    if left.parts is not None and right.parts is not None:
        if len(left.parts) == len(right.parts):
            parts = tuple(join(one, two) for one, two in zip(left.parts, right.parts, strict=True))
        else:
            every = join_all([*left.parts, *right.parts])
            parts = (every,) * max(len(left.parts), len(right.parts))
    items = left.items if right.items is None else right.items
    if left.items is not None and right.items is not None:
        old, new = dict(left.items), dict(right.items)
        items = tuple((key, join(old.get(key, UNKNOWN), new.get(key, UNKNOWN))) for key in {**old, **new})
    return Value(
        left.atoms | right.atoms,
        left.ref or right.ref,
        left.const if left.const == right.const else None,
        parts,
        items,
    )


def join_all(values: Iterable[Value]) -> Value:
    """Return what holds when a name has any one of the values."""
    result: Value | None = None
    for value in values:
        result = value if result is None else join(result, value)
    return result or UNKNOWN


def as_items(pairs: Iterable[tuple[str, Value]]) -> Value:
    """Return a mapping; the later of two values of a key stays."""
    return Value(items=tuple(dict(pairs).items()))


def element(value: Value, key: object = None) -> Value:
    """Return an element of a tuple or mapping: that of a known key, else any of them."""
    if value.parts is not None and value.parts:
        if isinstance(key, int) and -len(value.parts) <= key < len(value.parts):
            return value.parts[key]
        return join_all(value.parts)
    if value.items is not None:
        known = dict(value.items)
        if isinstance(key, str):
            return known.get(key, known.get("*", UNKNOWN))
        return join_all(known.values())
    return UNKNOWN


def assigned(value: Value, target: str, cls: str, *, attribute: bool) -> Value:
    """Return a value as it is once a name or attribute holds it: buffers and parameters learn what they are called."""

    def change(atom: Atom) -> Atom:
        if isinstance(atom, Buffer) and (not atom.target or (attribute and not atom.target.startswith("self."))):
            return replace(atom, target=target, cls=cls, taken=None if attribute else atom.taken)
        if isinstance(atom, Follower) and atom.parameter and attribute and not atom.name.startswith("self."):
            return replace(atom, name=target)
        return atom

    return value.map(change)


def taken(value: Value, where: Taken) -> Value:
    """Return a value as it is when it is read from an attribute at some place."""
    return value.map(lambda atom: replace(atom, taken=where) if isinstance(atom, Buffer) else atom)
