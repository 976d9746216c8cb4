"""Keep calls that take float16 alone from running in another dtype, where the code beside them is the other way."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from seatrial.stages.repair.edits import Edits, inside
from seatrial.stages.repair.plans import Plan, Test, chain, ends, idle
from seatrial.stages.repair.settle import settle

HALF = "torch.float16"


class Planner:
    """Decide for one method which conditions to guard.

    Args:
        fused: the calls that take float16 alone.
    """

    def __init__(self, edits: Edits, fused: set[cst.CSTNode]) -> None:
        self._edits = edits
        self._fused = fused

    def plan(self, function: cst.FunctionDef) -> Plan:
        """Return what is to be done to a method."""
        plan = self._block(function.body.body, more=False)
        if not plan.stuck:
            settle(self._edits, function, plan)
        return plan

    def _calls(self, node: cst.CSTNode) -> list[cst.Call]:
        return [one for one in inside(node) if isinstance(one, cst.Call) and one in self._fused]

    def _block(self, statements: Sequence[cst.CSTNode], *, more: bool) -> Plan:
        """Plan statements that run one after the other.

        Args:
            more: other statements follow the block.
        """
        plan = Plan()
        for number, statement in enumerate(statements):
            follows = more or not idle(statements[number + 1 :])
            part = self._statement(statement, more=follows)
            plan.guarded += part.guarded
            plan.stuck += part.stuck
        return plan

    def _statement(self, statement: cst.CSTNode, *, more: bool) -> Plan:
        if not self._calls(statement):
            return Plan()
        if isinstance(statement, cst.If):
            return self._chain(statement, more=more)
        if isinstance(statement, cst.With):
            return self._block(statement.body.body, more=more)
        if isinstance(statement, cst.SimpleStatementLine):
            return self._line(statement)
        return Plan(stuck=self._calls(statement))

    def _line(self, statement: cst.SimpleStatementLine) -> Plan:
        """Plan a line: calls in the first half of `a if test else b` are guarded by its test."""
        plan = Plan(stuck=self._calls(statement))
        for node in inside(statement):
            if isinstance(node, cst.IfExp) and self._calls(node.body) and not self._calls(node.orelse):
                if isinstance(node.orelse, cst.Name) and node.orelse.value == "None":
                    continue
                held = self._calls(node.body)
                plan.guarded.append(node)
                plan.stuck = [call for call in plan.stuck if call not in held]
        return plan

    def _chain(self, first: cst.If, *, more: bool) -> Plan:
        """Plan `if`, its `elif`s and its `else`: an arm that cannot run in another dtype is guarded as a whole."""
        arms, other = chain(first)
        rest = self._block(other.body.body, more=more) if other else Plan()
        way = other is not None and not idle(other.body.body)
        plan = Plan(guarded=list(rest.guarded), stuck=list(rest.stuck))
        for arm in arms:
            part = self._block(arm.body.body, more=more)
            part.stuck += self._calls(arm.test)
            if not part.stuck:
                plan.guarded += part.guarded
            elif not self._calls(arm.test) and not rest.stuck and (way or (more and ends(arm.body))):
                plan.guarded.append(arm)
            else:
                plan.stuck += part.stuck
        return plan


def guard(test: cst.BaseExpression, tensor: str) -> cst.BooleanOperation:
    """Return a test that asks for float16 as well."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or) and not test.lpar:
        test = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    loose = isinstance(test, cst.IfExp | cst.NamedExpr | cst.Lambda) and not test.lpar
    if loose:
        test = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.BooleanOperation(test, cst.And(), cst.parse_expression(f"{tensor}.dtype == {HALF}"))


def with_guard(node: Test, tensor: str) -> Test:
    """Return an `if` or a conditional expression that asks for float16 as well."""
    space = {"whitespace_before_test": cst.SimpleWhitespace(" ")} if isinstance(node, cst.If) else {}
    return node.with_changes(test=guard(node.test, tensor), **space)
