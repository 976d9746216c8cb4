"""What is to be done to a method so that it runs in any dtype."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from seatrial.stages.repair.edits import Edits, text

Test = cst.If | cst.IfExp
"""What has a condition that can be guarded."""


@dataclass
class Plan:
    """What is to be done to a method so that it runs in any dtype.

    Args:
        guarded: conditions that must ask for float16 too.
        stuck: calls that take float16 alone and that nothing stands beside.
        unbound: names that other dtypes would read without a value, where they are read.
        astray: conditions on which the operator's arguments are made for the way that another dtype does not take.
    """

    guarded: list[Test] = field(default_factory=list)
    stuck: list[cst.Call] = field(default_factory=list)
    unbound: list[cst.Name] = field(default_factory=list)
    astray: list[Test] = field(default_factory=list)

    def dead(self, node: cst.CSTNode, edits: Edits) -> bool:
        """Tell whether a node runs in float16 alone once the guards are there."""
        below = node
        for above in edits.above(node):
            if isinstance(above, Test) and above in self.guarded and below is above.body:
                return True
            below = above
        return False


def chain(first: cst.If) -> tuple[list[cst.If], cst.Else | None]:
    """Return the arms of an `if`, and its `else`."""
    arms = [first]
    while isinstance(arms[-1].orelse, cst.If):
        arms.append(arms[-1].orelse)
    other = arms[-1].orelse
    assert not isinstance(other, cst.If)
    return arms, other


def ends(body: cst.BaseSuite) -> bool:
    """Tell whether a block ends the function."""
    last = body.body[-1] if body.body else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return | cst.Raise)


_TELLS = re.compile(r"^(?:print|log|logger|logging|warnings)\b")


def idle(statements: Iterable[cst.CSTNode]) -> bool:
    """Tell whether statements only pass, tell or refuse: they are no way to do what stands beside them."""
    return all(
        isinstance(statement, cst.SimpleStatementLine | cst.BaseSmallStatement)
        and all(_is_idle(small) for small in getattr(statement, "body", [statement]))
        for statement in statements
    )


def _is_idle(small: cst.CSTNode) -> bool:
    match small:
        case cst.Pass() | cst.Raise() | cst.Assert() | cst.Return(value=None):
            return True
        case cst.Expr(value=cst.Call(func=func)):
            return _TELLS.search(text(func)) is not None
        case cst.Expr(value=value):
            return isinstance(value, cst.BaseString | cst.Ellipsis)
    return False
