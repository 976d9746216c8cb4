"""What a walk through a module keeps in mind: names, attributes, conditions, and the kernel calls that it came to."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from seatrial.model.scratch.classes import Library
from seatrial.model.scratch.found import Span
from seatrial.model.scratch.guards import Bindings, Guard, Scope
from seatrial.model.scratch.tensors import Argument
from seatrial.model.scratch.values import (
    Callee,
    Taken,
    Value,
)

DEEPEST = 8
"""Calls within calls that are followed."""
MOST = 20_000
"""Calls that are followed in one module; what is left then counts as not followed."""


NO_GUARD = Guard("", 0, frozenset())


class WorthwhileError(Exception):
    """A quick walk came to a buffer that a full one may find a fault with."""


@dataclass(slots=True)
class Frame:
    """A function that is being walked."""

    function: str
    """`CLASS.METHOD`, or the function's name."""
    owner: str
    """The class whose body it stands in."""
    cls: str
    """The class of its `self`."""
    home: str
    """Path of the module that it stands in."""
    env: dict[str, Value]
    scope: Callable[[], Scope]
    """Gives what reads the conditions of the function."""
    returned: list[Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reached:
    """A kernel call that the walk came to."""

    cls: str
    home: str
    function: str
    kernel: str
    call: Span
    arguments: tuple[Argument, ...]
    where: Taken


class Walker:
    """The state of a walk; what builds on it walks expressions, calls and statements."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.attributes: dict[str, dict[str, Value]] = {name: {} for name in library.classes}
        """What the attributes of a class's instances hold."""
        self.shared: dict[str, dict[str, Value]] = {name: {} for name in library.classes}
        """What classes themselves hold."""
        self.settled: dict[str, tuple[Guard, ...]] = {}
        """What a class's `__init__` checks before anything of it can run."""
        self.plain = False
        """Conditions do not matter now."""
        self.stop = False
        """The first buffer that could do harm ends the walk."""
        self.globals: dict[str, dict[str, Value]] = {path: {} for path in library.homes}
        self.guards: list[Guard] = []
        self.stack: list[ast.AST] = []
        self.entries: list[tuple[str, int]] = []
        """Functions that are being run, and how many guards held when they were called."""
        self.instances: list[str] = []
        """Classes whose methods are being run."""
        self.operators: dict[str, Callee] = {}
        """Bodies of the custom operators that the module registers with torch, by their dotted names."""
        self.reached: list[Reached] = []
        self.followed: set[str] = set()
        """Functions that were walked because another one calls them."""
        self.made: dict[tuple[str, Span], list[tuple[Guard, ...]]] = {}
        """What held where calls allocated, by module and place; of walks that know conditions."""
        self.budget = MOST
        self._bindings: dict[int, Bindings] = {}

    def bindings(self, function: ast.AST) -> Bindings:
        """Return what a function binds, looked up once."""
        if id(function) not in self._bindings:
            self._bindings[id(function)] = Bindings(function)
        return self._bindings[id(function)]

    def guard(self, test: ast.expr, holds: bool, frame: Frame, *, branch: bool = True) -> Guard:
        """Return the guard that a test makes of the lines that depend on it."""
        return NO_GUARD if self.plain else frame.scope().guard(test, holds, branch=branch)

    def here(self) -> Taken:
        """Return where the walk is: in which forward method, and in which branch of it."""
        forward = [entry for entry in self.entries if entry[0].rpartition(".")[2].startswith("forward")]
        method, depth = (forward or self.entries or [("", 0)])[-1 if forward else 0]
        branch = next((guard for guard in reversed(self.guards[depth:]) if guard.branch), None)
        return Taken(method, branch, tuple(self.guards))
