"""Walk every class of a module as it is used: made first, then run by each of its methods."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from seatrial.model.scratch.classes import Contents, Function, Library, Reader
from seatrial.model.scratch.kernels import FUSED_WORD
from seatrial.model.scratch.statements import Runner
from seatrial.model.scratch.tensors import Argument
from seatrial.model.scratch.values import UNKNOWN, Callee, Follower, Value, of
from seatrial.model.scratch.walk import MOST, Frame

TURNS = 4
"""Walks until attributes hold what they always hold; each may learn from the one before."""
_NOT_ACTIVATIONS = re.compile(
    r"position|_ids?$|^ids|ind(ex|ices)|_loc$|mapping|table|lens?$|mask|cache|scale|metadata|context|offset|topk_ids"
    r"|logits|count|slot|expert_map|state$|rotary|cos|sin|seq|prefix|name|size|num_|layer"
)
"""Parameters of a forward method that are no activations, by their names."""


def walked(tree: ast.Module, path: str, read: Reader) -> Runner:
    """Return the walk through a module: the kernel calls that it came to, and what was not followed."""
    runner = Runner(Library(Contents(path, tree), read))
    for home, contents in runner.library.homes.items():
        lines = [line for line in contents.tree.body if not isinstance(line, Function | ast.ClassDef)]
        runner.block(lines, _frame(runner, contents.tree, home, runner.globals[home]))
    for name, known in runner.library.classes.items():
        held = [line for line in known.node.body if isinstance(line, ast.Assign | ast.AnnAssign)]
        runner.block(held, _frame(runner, known.node, known.home, runner.shared[name]))
    for _ in range(TURNS):
        before = {name: dict(held) for name, held in runner.attributes.items()}
        runner.reached.clear()
        runner.followed.clear()
        runner.budget = MOST
        _turn(runner, path)
        quiet = not runner.made and not any(FUSED_WORD in call.kernel for call in runner.reached)
        if quiet or before == runner.attributes:
            break
    return runner


def _turn(runner: Runner, path: str) -> None:
    library = runner.library
    for name in library.classes:
        _root(runner, name, "__init__")
    for name, known in library.classes.items():
        if known.home != path or not library.is_module(name):
            continue
        for method in _methods(runner, name):
            found = library.method(name, method)
            if found and (method.startswith("forward") or f"{found[0].name}.{method}" not in runner.followed):
                _root(runner, name, method)


def _frame(runner: Runner, node: ast.AST, home: str, env: dict[str, Value]) -> Frame:
    nowhere = Callee(ast.Lambda(_NOTHING, ast.Constant(None)), "", home)
    return Frame("", "", "", home, env, runner.scope(nowhere, env, ""))


_NOTHING = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _methods(runner: Runner, cls: str) -> list[str]:
    """Return a class's methods, inherited ones too, forward methods first."""
    line = runner.library.lineage(cls)
    names = dict.fromkeys(name for known in line for name in known.methods if name != "__init__")
    return sorted(names, key=lambda name: not name.startswith("forward"))


def _root(runner: Runner, cls: str, method: str) -> None:
    """Walk a method as it is called from outside."""
    found = runner.library.method(cls, method)
    if found is None:
        return
    owner, function = found
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    runner.guards[:] = runner.settled.get(cls, ()) if method != "__init__" else ()
    callee = Callee(function, f"{owner.name}.{method}", owner.home, instance=cls)
    runner.run(callee, _given(named[1:], method.startswith("forward")), ast.Name("self"))
    runner.guards.clear()


def _given(parameters: Sequence[ast.arg], forward: bool) -> list[Argument]:
    """Return arguments as a caller from outside gives them: activations to a forward method, all else unknown."""
    return [
        Argument(one.arg, of(Follower(one.arg)) if forward and _is_activation(one) else UNKNOWN, ast.Name(one.arg))
        for one in parameters
    ]


def _is_activation(arg: ast.arg) -> bool:
    kind = ast.unparse(arg.annotation) if arg.annotation is not None else "Tensor"
    return "Tensor" in kind and "IntermediateTensors" not in kind and not _NOT_ACTIVATIONS.search(arg.arg)
