"""Keep the way of other dtypes to one that a method had before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import libcst as cst

from seatrial.stages.repair.edits import Edits, dotted, inside, parameters, text
from seatrial.stages.repair.plans import Plan, Test, chain


def settle(edits: Edits, function: cst.FunctionDef, plan: Plan) -> None:
    """Guard arms too whose condition other guards say does not hold on the way that is left.

    The way that another dtype takes must be one that the method had before: a layout that is chosen where
    `is_decode` holds does not fit an operator that runs where it does not. Nor may it read a name that only the
    guarded lines bind.
    """
    bound = _bound_once(edits, function)
    chains = [chain(node) for node in inside(function.body) if isinstance(node, cst.If)]
    given = _given_on(edits, plan)
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
    plan.astray = list(_astray(edits, function, plan, bound, given))


def _astray(
    edits: Edits, function: cst.FunctionDef, plan: Plan, bound: dict[str, cst.BaseExpression], given: set[str]
) -> Iterator[Test]:
    """Yield choices that hang on what guarded conditions ask, and make an operator's arguments in either way.

    Where `is_decode` held, the operator was not called: it is now, and what `not is_decode` prepares for it is not.
    """
    parts = [part for one in plan.guarded for part in _denied_parts(one.test, bound)]
    asked = {name for part in parts for name in _asked(part, {})}
    last = max((edits.line(one) for one in plan.guarded), default=0)
    for node in inside(function.body):
        if not isinstance(node, Test) or edits.line(node) >= last or plan.dead(node, edits):
            continue
        arms = chain(node)[0] if isinstance(node, cst.If) else [node]
        around = any(arm in plan.guarded for arm in arms) or any(one in inside(node) for one in plan.guarded)
        if around or not asked & _asked(node.test, bound):
            continue
        if isinstance(node, cst.IfExp):
            to = next((above for above in edits.above(node) if isinstance(above, cst.Assign)), None)
            if to and _named(to) & given and not (_chooses(node.body) and _chooses(node.orelse)):
                yield node
        elif any(_makes(one, given, plan, edits) for one in (node.body, node.orelse) if one):
            yield node


def _makes(block: cst.CSTNode, given: set[str], plan: Plan, edits: Edits) -> bool:
    """Tell whether a block computes what an operator is given, or hands it to a call for that alone."""
    for node in inside(block):
        match node:
            case cst.Assign(value=value):
                made = bool(_named(node) & given) and not _chooses(value)
            case cst.Expr(value=cst.Call(args=args)):
                made = any(isinstance(arg.value, cst.Name) and arg.value.value in given for arg in args)
            case _:
                made = False
        if made and not plan.dead(node, edits) and not _guarded_inside(node, block, plan, edits):
            return True
    return False


def _guarded_inside(node: cst.CSTNode, block: cst.CSTNode, plan: Plan, edits: Edits) -> bool:
    """Tell whether a node in a block is in a choice that asks for float16 too: the way beside a float16 kernel."""
    for above in edits.above(node):
        if above is block:
            return False
        if above in plan.guarded:
            return True
    return False


def _named(node: cst.Assign) -> set[str]:
    return {one.target.value for one in node.targets if isinstance(one.target, cst.Name)}


def _asked(test: cst.BaseExpression, bound: dict[str, cst.BaseExpression]) -> set[str]:
    """Return the names, and the attributes of self, that a test asks, and those that local names stand for."""
    found = set()
    for node in inside(test):
        if isinstance(node, cst.Attribute) and dotted(node).startswith("self."):
            found.add(dotted(node))
        elif isinstance(node, cst.Name) and node.value not in ("self", "torch"):
            found |= {node.value} | (_asked(bound[node.value], {}) if node.value in bound else set())
    return found


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


def _given_on(edits: Edits, plan: Plan) -> set[str]:
    """Return the names that the operators are given which stand beside guarded calls."""
    found = set()
    for one in plan.guarded:
        rest = [one.orelse] if one.orelse else _after(edits, one)
        for node in (inner for part in rest for inner in inside(part)):
            if isinstance(node, cst.Call):
                found |= {arg.value.value for arg in node.args if isinstance(arg.value, cst.Name)}
    return found


def _after(edits: Edits, node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return what runs after a statement in its block: the other way of an early return."""
    above = next(edits.above(node))
    while isinstance(above, cst.If) and above.orelse is node:
        node, above = above, next(edits.above(above))
    body = getattr(above, "body", ())
    lines = list(body) if isinstance(body, Sequence) else []
    return lines[lines.index(node) + 1 :] if node in lines else []


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


def _bound_once(edits: Edits, function: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    stores = Counter(parameters(function))
    found: dict[str, cst.BaseExpression] = {}
    for node in inside(function.body):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
                found[name] = value
        if isinstance(node, cst.Name) and edits.is_bound(node):
            stores[node.value] += 1
    return {name: value for name, value in found.items() if stores[name] == 1}


def _denied(test: cst.BaseExpression, bound: dict[str, cst.BaseExpression]) -> Iterator[str]:
    """Yield conditions that do not hold where a test does not."""
    yield from (text(part.with_changes(lpar=[], rpar=[])) for part in _denied_parts(test, bound))


def _denied_parts(test: cst.BaseExpression, bound: dict[str, cst.BaseExpression]) -> Iterator[cst.BaseExpression]:
    match test:
        case cst.BooleanOperation(operator=cst.Or(), left=left, right=right):
            yield from _denied_parts(left, bound)
            yield from _denied_parts(right, bound)
        case cst.BooleanOperation():
            return
        case cst.Name(value=name) if name in bound:
            yield test
            yield from _denied_parts(bound[name], {})
        case _:
            yield test


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
