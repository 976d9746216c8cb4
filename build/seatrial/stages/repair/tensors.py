"""Say which parameter of a method is its activations."""

from __future__ import annotations

import libcst as cst

from seatrial.stages.repair.edits import inside, parameters

FIRST = "hidden_states"
INTEGERS = frozenset({"int", "long", "int32", "int64"})


def activations(function: cst.FunctionDef) -> str | None:
    """Return the name of a method's activations: a tensor in the model's dtype; None where it has none.

    `hidden_states` by custom; else the first parameter that is handed whole to calls, annotated as a tensor or not at
    all, and never turned into integers.
    """
    names = parameters(function)
    if FIRST in names:
        return FIRST
    plain = {
        param.name.value
        for param in [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
        if param.annotation is None or "Tensor" in cst.Module([]).code_for_node(param.annotation.annotation)
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


def _is_integer(arg: cst.Arg) -> bool:
    match arg.value:
        case cst.Attribute(attr=cst.Name(value=name)):
            return name in INTEGERS
    return False
