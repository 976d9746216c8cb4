"""Walk every class of a module as it is used: made first, then run by each of its methods."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial

from seatrial.model.modules import parse
from seatrial.model.scratch.classes import Contents, Function, Library, Reader
from seatrial.model.scratch.kernels import FUSED_WORD
from seatrial.model.scratch.spellers import Spellers
from seatrial.model.scratch.statements import Runner
from seatrial.model.scratch.tensors import Argument
from seatrial.model.scratch.text import says_encoding
from seatrial.model.scratch.values import SIXTEEN, UNKNOWN, Callee, Dtype, Follower, Fresh, Partial, Value, of
from seatrial.model.scratch.walk import MOST, Frame, WorthwhileError

TURNS = 4
"""Walks until attributes hold what they always hold; each may learn from the one before."""
_NOT_ACTIVATIONS = re.compile(
    r"position|_ids?$|^ids|_?idxs?$|ind(ex|ices)|_loc$|mapping|table|lens?$|mask|cache|scale|metadata|context|offset|topk_ids"
    r"|logits|count|slot|expert_map|state$|rotary|cos|sin|seq|prefix|name|size|num_|layer"
)
"""Parameters of a forward method that are no activations, by their names."""


def walked(source: str, path: str, read: Reader) -> Runner | None:
    """Return the walk through a module: the kernel calls that it came to, and what was not followed.

    None when nothing can be found: what it allocates in a literal 16-bit dtype meets nothing, and it calls no kernel
    that takes float16 alone. That is seen before any other module is read.
    """
    contents = Contents(path, parse(source if says_encoding(source) else source.encode(), path))
    chosen = None
    if FUSED_WORD not in source:
        spellers = Spellers(contents, source)
        chosen = spellers.classes()
        if not _may_harm(contents, chosen, spellers):
            return None
    runner = _begun(Library(contents, read))
    for _ in range(TURNS):
        before = {name: dict(held) for name, held in runner.attributes.items()}
        runner.plain = not any(before.values())  # the first turn only learns what attributes hold
        _turn(runner, path, chosen)
        if before == runner.attributes:
            break
    return runner


def _may_harm(contents: Contents, chosen: Collection[str], spellers: Spellers) -> bool:
    """Tell whether walking some classes comes to a literal 16-bit allocation that could do harm.

    Methods that spell none are walked only where one could come to them: from the module, by a default, by what
    another one gives back, or in an attribute.
    """
    try:
        runner = _begun(Library(contents, None), quick=True)
        given = _turn(runner, contents.path, chosen, spellers.holds)
        held = [value for values in (*runner.attributes.values(), *runner.shared.values()) for value in values.values()]
        if any(_brings_dtype(value) for value in (*given, *held)):
            _turn(runner, contents.path, chosen)
    except WorthwhileError:
        return True
    return False


def _brings_dtype(value: Value) -> bool:
    return any(
        isinstance(atom, Callee | Partial | Fresh) or (isinstance(atom, Dtype) and atom.name in SIXTEEN)
        for atom in value.flat()
    )


def _begun(library: Library, *, quick: bool = False) -> Runner:
    """Return a walk that knows what modules and classes hold."""
    runner = Runner(library)
    runner.stop = runner.plain = quick
    for home, contents in library.homes.items():
        lines = [line for line in contents.tree.body if not isinstance(line, Function | ast.ClassDef)]
        runner.block(lines, _frame(runner, home, runner.globals[home]))
    for name, known in library.classes.items():
        held = [line for line in known.node.body if isinstance(line, ast.Assign | ast.AnnAssign)]
        runner.block(held, _frame(runner, known.home, runner.shared[name]))
    return runner


def _turn(
    runner: Runner, path: str, chosen: Collection[str] | None = None, holds: Callable[[Function], bool] | None = None
) -> list[Value]:
    """Make every class once, and walk its methods; return what these give back.

    Args:
        chosen: walk the methods of these classes only.
        holds: walk those methods only of which this is true.
    """
    library = runner.library
    runner.reached.clear()
    runner.followed.clear()
    runner.budget = MOST
    for name in library.classes:
        if not runner.stop or name in (chosen or ()):
            _root(runner, name, "__init__")
    given = []
    for name in library.classes if chosen is None else chosen:
        if library.classes[name].home != path or not library.is_module(name):
            continue
        for method in _methods(runner, name):
            found = library.method(name, method)
            if found is None or (holds is not None and not holds(found[1])):
                continue
            if method.startswith("forward") or f"{found[0].name}.{method}" not in runner.followed:
                given.append(_root(runner, name, method))
    return given


def _frame(runner: Runner, home: str, env: dict[str, Value]) -> Frame:
    nowhere = Callee(ast.Lambda(_NOTHING, ast.Constant(None)), "", home)
    return Frame("", "", "", home, env, partial(runner.scope, nowhere, env, ""))


_NOTHING = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _methods(runner: Runner, cls: str) -> list[str]:
    """Return a class's methods, inherited ones too, forward methods first."""
    line = runner.library.lineage(cls)
    names = dict.fromkeys(name for known in line for name in known.methods if name != "__init__")
    return sorted(names, key=lambda name: not name.startswith("forward"))


def _root(runner: Runner, cls: str, method: str) -> Value:
    """Walk a method as it is called from outside; return what it may give back."""
    found = runner.library.method(cls, method)
    if found is None:
        return UNKNOWN
    owner, function = found
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    runner.guards[:] = runner.settled.get(cls, ()) if method != "__init__" else ()
    callee = Callee(function, f"{owner.name}.{method}", owner.home, instance=cls)
    result = runner.run(callee, _given(named[1:], method.startswith("forward")), ast.Name("self"))
    runner.guards.clear()
    return result


def _given(parameters: Sequence[ast.arg], forward: bool) -> list[Argument]:
    """Return arguments as a caller from outside gives them: activations to a forward method, all else unknown."""
    return [
        Argument(one.arg, of(Follower(one.arg)) if forward and _is_activation(one) else UNKNOWN, ast.Name(one.arg))
        for one in parameters
    ]


def _is_activation(arg: ast.arg) -> bool:
    kind = ast.unparse(arg.annotation) if arg.annotation is not None else "Tensor"
    return "Tensor" in kind and "IntermediateTensors" not in kind and named_as_activations(arg.arg)


def named_as_activations(name: str) -> bool:
    """Tell whether a parameter of a forward method may be activations, by its name."""
    return not _NOT_ACTIVATIONS.search(name)
