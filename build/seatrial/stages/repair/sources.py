"""Repair one source: dtypes of allocations, guards of float16 calls, delegation, checks. Source in, source out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

import libcst as cst

from seatrial.model.scratch import Analysis, analyse, source_text
from seatrial.stages.repair.checks import check_operators, operator_calls
from seatrial.stages.repair.delegates import GIVEN, sibling_of
from seatrial.stages.repair.dtypes import follow_dtypes
from seatrial.stages.repair.edits import Edits, Refusal, RefusedPlaceError
from seatrial.stages.repair.guards import Planner, with_guard
from seatrial.stages.repair.plans import Plan
from seatrial.stages.repair.proof import differences
from seatrial.stages.repair.tensors import activations, hold_dtype

Reader = Callable[[str], ast.Module | None]


@dataclass(frozen=True)
class Rewritten:
    """What became of a source.

    Args:
        opened: `CLASS.METHOD` of each method that takes projected states now: overrides have to take them too.
    """

    path: str
    before: bytes
    after: bytes
    refusals: tuple[Refusal, ...]
    opened: tuple[str, ...] = ()


def rewrite_source(
    source: bytes, path: str, *, built_in_dtype: bool = False, read: Reader = lambda _: None
) -> Rewritten:
    """Rewrite a module so that it runs in the model's dtype; it is unchanged where nothing is wrong.

    What comes out is not proven yet: see :func:`prove`.

    Args:
        path: below the tree's root.
        built_in_dtype: see :func:`follow_dtypes`.
        read: gives the modules that classes are imported from.

    Raises:
        IntegrityError: the source is no Python; says where.
    """
    analysis = analyse(source_text(source, path), path, read)
    if not analysis.hazards and not analysis.fused:
        return Rewritten(path, source, source, ())
    edits = Edits(source, path)
    for unproven in analysis.unproven:
        edits.refuse(unproven.span.line, unproven.why)
    follow_dtypes(edits, analysis.hazards, built_in_dtype=built_in_dtype)
    opened = _guard_calls(edits, analysis)
    check_operators(edits, operator_calls(edits, analysis.kernels))
    if edits.refusals:
        return Rewritten(path, source, source, tuple(edits.refusals))
    return Rewritten(path, source, edits.done(), (), tuple(opened))


def _guard_calls(edits: Edits, analysis: Analysis) -> list[str]:
    """Guard every call that takes float16 alone; return the methods that take projected states for that."""
    fused: set[cst.CSTNode] = set()
    for one in analysis.fused:
        try:
            fused.add(edits.at(one.call))
        except RefusedPlaceError as refused:
            edits.refuse(refused.line, refused.why)
    methods: dict[cst.ClassDef, dict[str, tuple[cst.FunctionDef, Plan]]] = {}
    for call in fused:
        function = next((node for node in edits.above(call) if isinstance(node, cst.FunctionDef)), None)
        cls = next((node for node in edits.above(call) if isinstance(node, cst.ClassDef)), None)
        if function is None or cls is None:
            edits.refuse(edits.line(call), "a float16 kernel is called outside a method")
        elif function.name.value not in methods.setdefault(cls, {}):
            methods[cls][function.name.value] = (function, Planner(edits, fused).plan(function))
    opened = []
    for cls, planned in methods.items():
        for function, plan in planned.values():
            if plan.stuck:
                try:
                    opened.append(f"{cls.name.value}.{sibling_of(edits, function, planned, fused)}")
                except RefusedPlaceError as refused:
                    edits.refuse(edits.line(plan.stuck[0]), refused.why)
            else:
                _guard(edits, function, plan)
    return list(dict.fromkeys(opened))


def _guard(edits: Edits, function: cst.FunctionDef, plan: Plan) -> None:
    for name in plan.unbound:
        edits.refuse(edits.line(name), f"{name.value} is read here, and bound beside float16 kernels alone")
    for test in plan.astray:
        edits.refuse(
            edits.line(test),
            "what another way than the float16 kernel's is given is made here, on a condition that this way hangs on",
        )
    tensor = activations(function)
    if tensor is None:
        edits.refuse(edits.line(function), f"{function.name.value} is given no activations whose dtype could be asked")
        return
    for node in dict.fromkeys(plan.guarded):
        try:
            hold_dtype(edits, function, tensor, node)
        except RefusedPlaceError as refused:
            edits.refuse(refused.line, refused.why)
        edits.change(node, lambda updated: with_guard(updated, tensor))


def prove(one: Rewritten, read: Reader = lambda _: None) -> Rewritten:
    """Analyse what was written again, and compare it: in float16 it must run what the old source ran.

    Args:
        read: gives the modules that classes are imported from, repaired like this one.
    """
    before, after = source_text(one.before, one.path), source_text(one.after, one.path)
    left = analyse(after, one.path, read)
    refusals = [
        Refusal(
            one.path,
            hazard.allocation.call_span.line,
            f"{hazard.allocation.target} would still be {hazard.allocation.dtype}",
        )
        for hazard in left.hazards
    ]
    refusals += [
        Refusal(one.path, fused.call.line, f"{fused.kernel} would still run in any dtype") for fused in left.fused
    ]
    refusals += [Refusal(one.path, line, why) for line, why in differences(before, after, GIVEN)]
    return replace(one, after=one.before, refusals=tuple(refusals)) if refusals else one
