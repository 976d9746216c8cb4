"""Keep the way of other dtypes to one that a method had before."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from seatrial.stages.repair.edits import Edits, dotted, inside, parameters, text
from seatrial.stages.repair.plans import Plan, chain


def settle(edits: Edits, function: cst.FunctionDef, plan: Plan) -> None:
    """Guard arms too whose condition other guards say does not hold on the way that is left.

    The way that another dtype takes must be one that the method had before: a layout that is chosen where
    `is_decode` holds does not fit an operator that runs where it does not. Nor may it read a name that only the
    guarded lines bind.
    """
    bound = _bound_once(function)
    chains = [chain(node) for node in inside(function.body) if isinstance(node, cst.If)]
    given = _given_on(function, plan)
    before = -1
    while before != len(plan.guarded):
        before = len(plan.guarded)
        denied = {name for one in plan.guarded for name in _denied(one.test, bound)}
        plan.unbound = _unbound(edits, function, plan)
        for arms, _ in chains:
            along = any(arm in plan.guarded for arm in arms)
            for arm in arms:
                if arm in plan.guarded or not denied & set(_conjuncts(arm.test, bound)):
                    continue
                if along or _lays_out(arm, given) or any(name in inside(arm.body) for name in plan.unbound):
                    plan.guarded.append(arm)


def _unbound(edits: Edits, function: cst.FunctionDef, plan: Plan) -> list[cst.Name]:
    """Return what is read outside of guarded lines though nothing but these binds it."""
    dead: set[str] = set()
    live = set(parameters(function))
    read = []
    for node in inside(function.body):
        name = ""
        if isinstance(node, cst.Name) and edits.is_read(node):
            read.append(node)
        elif isinstance(node, cst.Name) and edits.is_bound(node):
            name = node.value
        elif isinstance(node, cst.ImportAlias):
            name = dotted(node.asname.name) if node.asname else dotted(node.name).partition(".")[0]
        if name:
            (dead if plan.dead(node, edits) else live).add(name)
    return [node for node in read if node.value in dead - live and not plan.dead(node, edits)]


def _given_on(function: cst.FunctionDef, plan: Plan) -> set[str]:
    """Return the names that the operators are given which stand beside guarded calls."""
    found = set()
    for one in plan.guarded:
        for node in inside(one.orelse) if one.orelse else ():
            if isinstance(node, cst.Call):
                found |= {arg.value.value for arg in node.args if isinstance(arg.value, cst.Name)}
    return found


def _lays_out(arm: cst.If, given: set[str]) -> bool:
    """Tell whether an arm computes what an operator is given, more than choosing a buffer for it."""
    for node in inside(arm.body):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
                if name in given and not _chooses(value):
                    return True
    return False


def _chooses(value: cst.BaseExpression) -> bool:
    match value:
        case cst.Name() | cst.Attribute():
            return True
        case cst.Subscript(value=inner, slice=slices):
            return _chooses(inner) and all(isinstance(one.slice, cst.Slice) for one in slices)
        case cst.Call(func=cst.Attribute(value=cst.Name(value="torch"), attr=cst.Name(value=name))):
            return name.split("_")[0] in ("empty", "zeros", "ones", "full")
    return False


def _bound_once(function: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    found: dict[str, list[cst.BaseExpression]] = {}
    for node in inside(function.body):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
                found.setdefault(name, []).append(value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _denied(test: cst.BaseExpression, bound: dict[str, cst.BaseExpression]) -> Iterator[str]:
    """Yield conditions that do not hold where a test does not."""
    match test:
        case cst.BooleanOperation(operator=cst.Or(), left=left, right=right):
            yield from _denied(left, bound)
            yield from _denied(right, bound)
        case cst.BooleanOperation():
            return
        case cst.Name(value=name) if name in bound:
            yield name
            yield from _denied(bound[name], {})
        case _:
            yield text(test.with_changes(lpar=[], rpar=[]))


def _conjuncts(test: cst.BaseExpression, bound: dict[str, cst.BaseExpression]) -> Iterator[str]:
    """Yield conditions that hold where a test does."""
    match test:
        case cst.BooleanOperation(operator=cst.And(), left=left, right=right):
            yield from _conjuncts(left, bound)
            yield from _conjuncts(right, bound)
        case cst.Name(value=name) if name in bound:
            yield name
            yield from _conjuncts(bound[name], {})
        case _:
            yield text(test.with_changes(lpar=[], rpar=[]))
