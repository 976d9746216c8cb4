"""Say which parameter of a method is its activations."""

from __future__ import annotations

import re

import libcst as cst

from seatrial.model.scratch import named_as_activations
from seatrial.stages.repair.edits import Edits, RefusedPlaceError, inside, parameters, text

FIRST = "hidden_states"
_TENSORS = frozenset(
    {
        "dtype",
        "device",
        "shape",
        "size",
        "dim",
        "ndim",
        "numel",
        "view",
        "reshape",
        "contiguous",
        "flatten",
        "new_empty",
    }
)
"""What no number has."""
_SIZED = re.compile(r"^range$|\b(?:empty|zeros|ones|full|new_\w+|view|reshape|expand)$")
"""Calls that take sizes."""
_QUANTISED = re.compile(r"fp8|fp4|int8|int4|quant|weight|bias")
_RECASTS = re.compile(r"quant|fp8|fp4|int8|int4|float|double|half|cast|pack|dtype|\.(?:to|type|int|long|bool)\b")
"""Stands in what may change the dtype of a tensor that it is given."""
INTEGERS = frozenset({"int", "long", "int32", "int64"})


def activations(function: cst.FunctionDef) -> str | None:
    """Return the name of a method's activations: a tensor in the model's dtype; None where it has none.

    `hidden_states` by custom; else the first parameter that is handed whole to calls, annotated as a tensor or not at
    all, never None, never turned into integers, and not named as positions, states, caches and the like are. What is
    not annotated has to be seen to be a tensor in a method that is no forward method, and is no number in one that is.
    """
    names = parameters(function)
    if FIRST in names:
        return FIRST
    plain = {
        param.name.value
        for param in [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
        if _is_tensor(param, function)
        and named_as_activations(param.name.value)
        and not _QUANTISED.search(param.name.value)
    }
    given = set()
    counted = set()
    for node in inside(function.body):
        match node:
            case cst.Arg(value=cst.Name(value=name)):
                given.add(name)
            case cst.Call(func=cst.Attribute(value=cst.Name(value=name), attr=cst.Name(value=method)), args=args):
                if method in INTEGERS or (method == "to" and any(_is_integer(arg) for arg in args)):
                    counted.add(name)
    fitting = [name for name in names if name in plain & given - counted]
    return fitting[0] if fitting else None


def _is_tensor(param: cst.Param, function: cst.FunctionDef) -> bool:
    if isinstance(param.default, cst.Name) and param.default.value == "None":
        return False
    if param.annotation is not None:
        kind = text(param.annotation.annotation)
        return "Tensor" in kind and "None" not in kind and "Optional" not in kind
    forward = function.name.value.startswith("forward")
    used = False
    for node in inside(function.body):
        match node:
            case cst.Attribute(value=cst.Name(value=name), attr=cst.Name(value=attribute)) if name == param.name.value:
                used = used or attribute in _TENSORS
            case cst.Call(func=func, args=args) if _SIZED.search(text(func)):
                if any(
                    isinstance(one, cst.Name) and one.value == param.name.value for arg in args for one in inside(arg)
                ):
                    forward = False
    return forward or used


def hold_dtype(edits: Edits, function: cst.FunctionDef, tensor: str, place: cst.CSTNode) -> None:
    """Refuse a place that is reached when a method's activations have been given another value, of unknown dtype."""
    looped = any(isinstance(above, cst.For | cst.While) for above in edits.above(place))
    for node in inside(function.body):
        if not (isinstance(node, cst.Name) and node.value == tensor and edits.is_bound(node)):
            continue
        line = edits.line(node)
        if looped or (line < edits.line(place) and not _in_another_arm(edits, node, place)):
            if _keeps_dtype(edits, node):
                continue
            raise RefusedPlaceError(edits.line(place), f"line {line} may give {tensor} another dtype")


def _in_another_arm(edits: Edits, node: cst.CSTNode, place: cst.CSTNode) -> bool:
    """Tell whether a node stands in one arm of an `if`, and a place in what is run or asked in its stead."""
    around = [place, *edits.above(place)]
    below = node
    for above in edits.above(node):
        if isinstance(above, cst.If) and below is above.body and above.orelse in around:
            return True
        below = above
    return False


def _keeps_dtype(edits: Edits, node: cst.Name) -> bool:
    """Tell whether a name is bound to another, or to what is made of itself while nothing speaks of another dtype."""
    for above in edits.above(node):
        match above:
            case cst.AugAssign():
                return True
            case cst.Assign(value=value) | cst.AnnAssign(value=cst.BaseExpression() as value):
                own = any(isinstance(one, cst.Name) and one.value == node.value for one in inside(value))
                said = text(value).replace(f".to({node.value}.dtype)", "")
                return isinstance(value, cst.Name | cst.Attribute) or (own and not _RECASTS.search(said))
            case cst.BaseStatement():
                return False
    return False


def _is_integer(arg: cst.Arg) -> bool:
    match arg.value:
        case cst.Attribute(attr=cst.Name(value=name)):
            return name in INTEGERS
    return False
