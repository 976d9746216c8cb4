"""Send methods that have float16 calls alone to a sibling that has another way, the projections handed over.

A method "whose input projection the caller has done" is its sibling without that projection. Where such a method has
nothing beside its fused calls, another dtype goes to the sibling, which takes the projected states as they are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import libcst as cst

from seatrial.stages.repair.edits import Edits, RefusedPlaceError, dotted, inside, parameters, text
from seatrial.stages.repair.guards import HALF
from seatrial.stages.repair.plans import Plan

GIVEN = "projected"
"""The keyword by which a sibling is handed what its caller has projected."""


@dataclass(frozen=True)
class Projection:
    """`NAME, _ = self.LAYER(ACTIVATIONS)` in a sibling."""

    name: str
    layer: str
    call: cst.Call


def sibling_of(
    edits: Edits, method: cst.FunctionDef, methods: Mapping[str, tuple[cst.FunctionDef, Plan]], fused: set[cst.CSTNode]
) -> str:
    """Send another dtype than float16 from a method to a sibling; return the sibling's name.

    Raises:
        RefusedPlaceError: none is known to do the same.
    """
    whys = []
    for name, (sibling, plan) in methods.items():
        if sibling is method or plan.stuck:
            continue
        try:
            _send(edits, method, sibling, plan, fused)
            return name
        except RefusedPlaceError as refused:
            whys.append(f"{name}: {refused.why}")
    raise RefusedPlaceError(
        edits.line(method),
        f"{method.name.value} has no way beside its float16 kernels, and no method of the class is seen to be that way"
        + (f" ({'; '.join(whys)})" if whys else ""),
    )


def _send(edits: Edits, method: cst.FunctionDef, sibling: cst.FunctionDef, plan: Plan, fused: set[cst.CSTNode]) -> None:
    _alike(edits, method, sibling)
    projections = _projections(edits, sibling, plan)
    line = edits.line(sibling)
    if not projections:
        raise RefusedPlaceError(line, "it projects nothing")
    source = {text(one.call.args[0].value) for one in projections}
    if len(source) != 1 or next(iter(source)) not in parameters(sibling):
        raise RefusedPlaceError(line, "what it projects is no parameter of its own")
    (hidden,) = source
    means = _meanings(edits, sibling, plan, projections)
    layers = _layers(edits, method, sibling, means, fused)
    order = [one.layer for one in projections]
    missing = [layer for layer in order if layer not in layers.values()]
    if missing or len(set(order)) != len(order) or len(layers) != len(order):
        raise RefusedPlaceError(line, f"{', '.join(missing) or 'a projection'} is not seen to be a parameter")
    givers = {layer: name for name, layer in layers.items()}
    _hidden_is_only_read(edits, sibling, plan, hidden, projections)
    words = _words(method, sibling, hidden, givers[order[0]], set(layers))
    handed = ", ".join(givers[layer] for layer in order)
    handed += "," if len(order) == 1 else ""
    given = f"{GIVEN}=({handed})"
    back = (
        f"if {givers[order[0]]}.dtype != {HALF}:\n"
        f"    return self.{sibling.name.value}(\n        {words},\n        {given},\n    )\n"
    )
    _open(edits, sibling, projections)
    edits.change(method.body, lambda body: _first(body, cst.parse_statement(back, edits.module.config_for_parsing)))


def _alike(edits: Edits, method: cst.FunctionDef, sibling: cst.FunctionDef) -> None:
    """Refuse a sibling that is called, or answers, in another way than a method."""
    line = edits.line(method)
    if not isinstance(method.body, cst.IndentedBlock):
        raise RefusedPlaceError(line, f"the body of {method.name.value} stands on its first line")
    if (method.asynchronous is None) != (sibling.asynchronous is None):
        raise RefusedPlaceError(line, "one of the two is asynchronous")
    if _answers(method) != _answers(sibling):
        raise RefusedPlaceError(line, "one of the two returns a value")


def _answers(function: cst.FunctionDef) -> bool:
    return any(isinstance(node, cst.Return) and node.value is not None for node in inside(function.body))


def _projections(edits: Edits, sibling: cst.FunctionDef, plan: Plan) -> list[Projection]:
    found = []
    for node in inside(sibling.body):
        match node:
            case cst.Assign(
                targets=[cst.AssignTarget(target=cst.Tuple(elements=[cst.Element(value=cst.Name(value=name)), _]))],
                value=cst.Call(func=func, args=[cst.Arg(value=cst.Name(), keyword=None)]) as call,
            ) if dotted(func).startswith("self.") and dotted(func).count(".") == 1:
                argument = text(call.args[0].value)
                if argument in parameters(sibling) and not plan.dead(node, edits):
                    found.append(Projection(name, dotted(func), call))
    return found


def _meanings(edits: Edits, sibling: cst.FunctionDef, plan: Plan, projections: list[Projection]) -> dict[str, str]:
    """Return which projection each local name of a sibling holds, columns picked from it or not."""
    means = {one.name: one.layer for one in projections}
    for node in inside(sibling.body):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
                inner = value.value if isinstance(value, cst.Subscript) else value
                if isinstance(inner, cst.Name) and inner.value in means and not plan.dead(node, edits):
                    means.setdefault(name, means[inner.value])
    return means


def _layers(
    edits: Edits,
    method: cst.FunctionDef,
    sibling: cst.FunctionDef,
    means: Mapping[str, str],
    fused: set[cst.CSTNode],
) -> dict[str, str]:
    """Return which projection each parameter of a method stands for, seen from a kernel that both call alike."""
    own = parameters(method)
    found: dict[str, str] = {}
    for there in _fused_calls(sibling, fused):
        for here in _fused_calls(method, fused):
            if text(here.func) != text(there.func) or len(here.args) != len(there.args):
                continue
            for mine, its in zip(here.args, there.args, strict=True):
                if text(mine.value) in own and text(its.value) in means:
                    layer = means[text(its.value)]
                    if found.setdefault(text(mine.value), layer) != layer:
                        raise RefusedPlaceError(edits.line(here), "two calls disagree on what a parameter holds")
    return found


def _fused_calls(function: cst.FunctionDef, fused: set[cst.CSTNode]) -> Iterator[cst.Call]:
    for node in inside(function.body):
        if isinstance(node, cst.Call) and node in fused:
            yield node


def _hidden_is_only_read(
    edits: Edits, sibling: cst.FunctionDef, plan: Plan, hidden: str, projections: list[Projection]
) -> None:
    """Refuse a sibling that takes more from its activations than what projected states have too."""
    for node in inside(sibling.body):
        if not (isinstance(node, cst.Name) and node.value == hidden and (edits.is_read(node) or edits.is_bound(node))):
            continue
        above = list(edits.above(node))
        if plan.dead(node, edits) or any(one.call in above for one in projections) or _of_rows(above):
            continue
        line = edits.line(node)
        raise RefusedPlaceError(line, f"line {line} takes more than rows and dtype of {hidden}")


def _of_rows(above: list[cst.CSTNode]) -> bool:
    """Tell `.dtype`, `.device`, `.shape[0]` and `.size(0)`."""
    match above[0]:
        case cst.Attribute(attr=cst.Name(value="dtype" | "device")):
            return True
        case cst.Attribute(attr=cst.Name(value="shape" | "size")):
            return _first_size(above)
    return False


def _first_size(above: list[cst.CSTNode]) -> bool:
    match above[1]:
        case cst.Call(args=[cst.Arg(value=cst.Integer(value="0"))]):
            return True
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer(value="0")))]):
            return True
    return False


def _words(method: cst.FunctionDef, sibling: cst.FunctionDef, hidden: str, rows: str, given: set[str]) -> str:
    words = []
    for name in parameters(sibling):
        if name == hidden:
            words.append(f"{name}={rows}")
        elif name in parameters(method):
            words.append(f"{name}={name}")
        elif not _has_default(sibling, name):
            raise RefusedPlaceError(0, f"its {name} is not given")
    left = set(parameters(method)) - given - set(parameters(sibling))
    if left:
        raise RefusedPlaceError(0, f"it does not take {', '.join(sorted(left))}")
    return ",\n        ".join(words)


def _has_default(function: cst.FunctionDef, name: str) -> bool:
    return any(
        param.name.value == name and param.default is not None
        for param in [*function.params.params, *function.params.kwonly_params]
    )


def _open(edits: Edits, sibling: cst.FunctionDef, projections: list[Projection]) -> None:
    """Let a sibling take what is projected already; once, whoever sends to it."""
    if projections[0].call in edits.changes:
        return
    if any(isinstance(node, cst.Name) and node.value == GIVEN for node in inside(sibling)):
        raise RefusedPlaceError(edits.line(sibling), f"it has a name {GIVEN} already")
    if (
        sibling.params.star_kwarg
        or sibling.params.kwonly_params
        or not isinstance(sibling.params.star_arg, cst.MaybeSentinel)
    ):
        raise RefusedPlaceError(edits.line(sibling), "it takes words of any name")
    for number, one in enumerate(projections):
        code = f"if {GIVEN} is None else ({GIVEN}[{number}], None)"
        edits.change(one.call, partial(_or_given, code))
    edits.change(sibling.params, _with_given)


def _or_given(code: str, call: cst.Call) -> cst.BaseExpression:
    return cst.parse_expression(f"{text(call)} {code}")


def _with_given(params: cst.Parameters) -> cst.Parameters:
    last = params.params[-1]
    given = cst.Param(
        cst.Name(GIVEN),
        default=cst.Name("None"),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if isinstance(last.comma, cst.Comma):
        between = params.params[-2].comma if len(params.params) > 1 else last.comma
        given = given.with_changes(comma=last.comma)
        last = last.with_changes(comma=between)
    else:
        last = last.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return params.with_changes(params=[*params.params[:-1], last, given])


def _first(body: cst.BaseSuite, statement: cst.BaseStatement) -> cst.BaseSuite:
    """Put a statement in front of a method's others, after what documents it."""
    lines = list(body.body)
    first = lines[0]
    match first:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()), *_]):
            documented = True
        case _:
            documented = False
    at = 1 if documented else 0
    return body.with_changes(body=[*lines[:at], statement, *lines[at:]])
