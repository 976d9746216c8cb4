"""Give allocations the model's dtype: where it is known at the line, and how it is written there."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from seatrial.model.scratch import Allocation, Hazard
from seatrial.stages.repair.edits import Edits, RefusedPlaceError, dotted, parameters
from seatrial.stages.repair.tensors import activations, hold_dtype

DEFAULT = "torch.get_default_dtype()"
PLAIN = frozenset({"object", "ABC", "Protocol", "NamedTuple", "Generic"})
"""Bases that make no module of torch's of a class."""


def follow_dtypes(edits: Edits, hazards: Iterable[Hazard], *, built_in_dtype: bool) -> None:
    """Rewrite the allocations of hazards so that they take the model's dtype; refuses where that is not in reach.

    Args:
        built_in_dtype: the tree builds its models under `set_default_torch_dtype(<the model's dtype>)`, so that the
            default dtype is the model's while a layer is made.
    """
    hazards = list(hazards)
    met = {hazard.cls: set[str]() for hazard in hazards}
    for hazard in hazards:
        met[hazard.cls] |= {hazard.parameter} | {use.parameter for use in hazard.uses}
    seen = set()
    for hazard in hazards:
        if hazard.allocation.dtype_span in seen:
            continue
        seen.add(hazard.allocation.dtype_span)
        try:
            _follow(edits, hazard.allocation, met[hazard.cls], built_in_dtype)
        except RefusedPlaceError as refused:
            edits.refuse(refused.line, f"{hazard.allocation.target or 'a tensor'}: {refused.why}")


def _follow(edits: Edits, made: Allocation, met: set[str], built_in_dtype: bool) -> None:
    line = made.dtype_span.line
    if made.form == "keywords":
        raise RefusedPlaceError(line, "its dtype comes out of **keywords, which others may share")
    node = edits.at(made.dtype_span)
    wanted = cst.parse_expression(_known_dtype(edits, node, met, built_in_dtype))
    if made.form == "method":
        edits.change(node, lambda call: _cast(call, wanted))
    else:
        edits.change(node, lambda _: wanted)


def _cast(call: cst.Call, wanted: cst.BaseExpression) -> cst.Call:
    """Return `tensor.to(dtype)` for `tensor.half()`."""
    assert isinstance(call.func, cst.Attribute)
    return call.with_changes(func=call.func.with_changes(attr=cst.Name("to")), args=[cst.Arg(wanted)])


def _known_dtype(edits: Edits, node: cst.CSTNode, met: set[str], built_in_dtype: bool) -> str:
    """Return an expression for the model's dtype that is known to have a value at a node."""
    functions = [above for above in edits.above(node) if isinstance(above, cst.FunctionDef)]
    classes = [above for above in edits.above(node) if isinstance(above, cst.ClassDef)]
    line = edits.line(node)
    if len(functions) != 1 or len(classes) != 1:
        raise RefusedPlaceError(line, "it is not allocated in a method of the class")
    function = functions[0]
    if function.name.value == "__init__":
        for name in sorted(met, key=lambda name: ("bias" not in name, name)):
            if _bound_before(edits, function, name, line):
                return f"{name}.dtype"
        before = "no parameter in the model's dtype is made before this line"
        if not _derives(classes[0]):
            raise RefusedPlaceError(line, f"{before}, and {classes[0].name.value} may be made while no model is loaded")
        if built_in_dtype:
            return DEFAULT
        raise RefusedPlaceError(line, f"{before}, and no loader of the tree makes models under their dtype")
    tensor = activations(function)
    if tensor is None or tensor not in parameters(function):
        raise RefusedPlaceError(line, f"{function.name.value} is given no activations whose dtype it could take")
    hold_dtype(edits, function, tensor, node)
    return f"{tensor}.dtype"


def _derives(cls: cst.ClassDef) -> bool:
    """Tell whether a class has a base, so that it may be a module of torch's: those are made when a model is loaded."""
    return any(dotted(base.value).rpartition(".")[2] not in PLAIN for base in cls.bases)


def _bound_before(edits: Edits, function: cst.FunctionDef, name: str, line: int) -> bool:
    """Tell whether `__init__` has made a parameter on every way to a line."""
    if not name.startswith("self.") or not isinstance(function.body, cst.IndentedBlock):
        return False
    for statement in function.body.body:
        if edits.line(statement) >= line:
            return False
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for small in statement.body:
            match small:
                case cst.Assign(targets=[cst.AssignTarget(target=target)], value=cst.Call(func=called)):
                    if dotted(target) == name and dotted(called).rpartition(".")[2] == "Parameter":
                        return True
    return False
