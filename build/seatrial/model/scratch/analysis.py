"""Find 16-bit scratch tensors of modules that meet the model's own dtype in a kernel call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from seatrial.model.modules import parse
from seatrial.model.scratch.classes import Contents, Function
from seatrial.model.scratch.found import Allocation, Analysis, Fused, Hazard, Span, Unproven, Use
from seatrial.model.scratch.guards import exclude, known_dtypes
from seatrial.model.scratch.kernels import takes_float16_alone
from seatrial.model.scratch.statements import Runner
from seatrial.model.scratch.tensors import Argument
from seatrial.model.scratch.values import UNKNOWN, Buffer, Callee, Follower, Taken, Value, of
from seatrial.model.scratch.walk import Frame, Reached

_NOT_ACTIVATIONS = re.compile(
    r"position|_ids?$|^ids|ind(ex|ices)|_loc$|mapping|table|lens?$|mask|cache|scale|metadata|context|offset|topk_ids"
    r"|logits|count|slot|expert_map|state$|rotary|cos|sin|seq|prefix|name|size|num_|layer"
)
"""Parameters of a forward method that are no activations, by their names."""


def analyse(source: str, path: str) -> Analysis:
    """Find 16-bit scratch tensors that reach kernels beside the model's dtype.

    The source is read as a syntax tree; nothing is imported or run. Only modules of torch's (classes) are looked at.

    Raises:
        IntegrityError: the source is no Python; says where.
    """
    contents = Contents(parse(source.encode(), path))
    runner = Runner(contents)
    _prepare(runner)
    unproven = []
    for cls in contents.classes:
        if contents.is_module(cls):
            _walk_class(runner, cls)
    if runner.budget <= 0:
        unproven.append(Unproven(_whole(contents.tree), "the module calls itself in too many ways to follow"))
    reached = list(dict.fromkeys(runner.reached))
    return Analysis(path, _hazards(reached), _fused(reached), tuple(unproven), _kernels(reached))


def _whole(tree: ast.Module) -> Span:
    last = tree.body[-1]
    return Span(1, 0, last.end_lineno or 1, last.end_col_offset or 0)


def _prepare(runner: Runner) -> None:
    """Learn what the module's names and every object's attributes hold."""
    contents = runner.contents
    frame = _frame(runner, contents.tree, runner.globals)
    runner.block([line for line in contents.tree.body if not isinstance(line, Function | ast.ClassDef)], frame)
    for name, known in contents.classes.items():
        body = [line for line in known.node.body if isinstance(line, ast.Assign | ast.AnnAssign)]
        runner.block(body, _frame(runner, known.node, runner.attributes[name]))
    for _ in range(2):
        for name in contents.classes:
            if contents.is_module(name):
                _root(runner, name, "__init__")
                for method in _methods(runner, name):
                    _root(runner, name, method)
    runner.reached.clear()
    runner.followed.clear()


def _frame(runner: Runner, node: ast.AST, env: dict[str, Value]) -> Frame:
    return Frame("", "", "", env, runner.scope(node, env, "", ""))


def _methods(runner: Runner, cls: str) -> list[str]:
    """Return a class's methods, inherited ones too, forward methods first."""
    names = dict.fromkeys(
        name for known in runner.contents.lineage(cls) for name in known.methods if name != "__init__"
    )
    return sorted(names, key=lambda name: not name.startswith("forward"))


def _walk_class(runner: Runner, cls: str) -> None:
    for method in _methods(runner, cls):
        found = runner.contents.method(cls, method)
        if found and (method.startswith("forward") or f"{found[0]}.{method}" not in runner.followed):
            _root(runner, cls, method)


def _root(runner: Runner, cls: str, method: str) -> None:
    """Walk a method as it is called from outside."""
    found = runner.contents.method(cls, method)
    if found is None:
        return
    owner, function = found
    arguments = []
    if method.startswith("forward"):
        spec = function.args
        for arg in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs][1:]:
            if _is_activation(arg):
                arguments.append(Argument(arg.arg, of(Follower(arg.arg)), ast.Name(arg.arg)))
    spec_names = {argument.name for argument in arguments}
    for arg in [*function.args.args[1:], *function.args.kwonlyargs]:
        if arg.arg not in spec_names:
            arguments.append(Argument(arg.arg, UNKNOWN, ast.Name(arg.arg)))
    runner.run(Callee(function, f"{owner}.{method}", instance=cls), arguments, ast.Name("self"))


def _is_activation(arg: ast.arg) -> bool:
    kind = ast.unparse(arg.annotation) if arg.annotation is not None else "Tensor"
    return "Tensor" in kind and "IntermediateTensors" not in kind and not _NOT_ACTIVATIONS.search(arg.arg)


def _hazards(reached: Iterable[Reached]) -> tuple[Hazard, ...]:
    found: dict[Buffer, dict[Use, None]] = {}
    for call in reached:
        for buffer, use in _uses(call):
            key = Buffer(buffer.site, buffer.cls, buffer.target)
            if use.parameter or takes_float16_alone(call.kernel):
                found.setdefault(key, {})[use] = None
    hazards = []
    for buffer, some in found.items():
        uses = tuple(sorted(some, key=lambda use: (use.call, use.branch_line, use.method, use.argument)))
        parameter = next((use.parameter for use in uses if use.parameter), "")
        hazards.append(
            Hazard(
                cls=buffer.cls,
                allocation=_allocation(buffer),
                uses=uses,
                parameter=parameter,
                kind="mismatch" if parameter else "fused16",
            )
        )
    return tuple(sorted(hazards, key=lambda one: (one.allocation.call_span, one.allocation.target)))


def _allocation(buffer: Buffer) -> Allocation:
    site = buffer.site
    return Allocation(
        target=buffer.target,
        dtype=site.dtype,
        form=site.form,
        dtype_span=site.dtype_span,
        literal_span=site.literal_span,
        call_span=site.call_span,
        function=site.function,
    )


def _uses(call: Reached) -> Iterator[tuple[Buffer, Use]]:
    for argument in call.arguments:
        for buffer in sorted(_buffers(argument), key=repr):
            taken = buffer.taken or call.where
            known = known_dtypes([*taken.guards, *call.where.guards])
            if known & {buffer.site.dtype, ""} or exclude(taken.guards, call.where.guards):
                continue
            branch = taken.branch or (call.where.branch if taken.method == call.where.method else None)
            yield buffer, _use(call, replace(taken, branch=branch), argument.name, _partner(call, argument))


def _buffers(argument: Argument) -> set[Buffer]:
    return {atom for atom in argument.value.flat() if isinstance(atom, Buffer)}


def _use(call: Reached, taken: Taken, argument: str, parameter: str) -> Use:
    return Use(
        method=taken.method,
        branch=taken.branch.text if taken.branch else "",
        branch_line=taken.branch.line if taken.branch else call.call.line,
        kernel=call.kernel,
        call=call.call,
        function=call.function,
        argument=argument,
        parameter=parameter,
    )


def _partner(call: Reached, besides: Argument | None) -> str:
    """Return what a call takes in the model's dtype, a parameter of the class before activations."""
    found = [
        atom
        for argument in call.arguments
        if argument is not besides
        for atom in argument.value.flat()
        if isinstance(atom, Follower)
    ]
    found.sort(key=lambda atom: (not atom.parameter, "bias" not in atom.name, atom.name))
    return found[0].name if found else ""


def _fused(reached: Iterable[Reached]) -> tuple[Fused, ...]:
    found: dict[Fused, None] = {}
    for call in reached:
        if takes_float16_alone(call.kernel) and "float16" not in known_dtypes(call.where.guards):
            use = _use(call, call.where, "", "")
            found[Fused(call.cls, use.method, call.function, call.kernel, call.call, use.branch, use.branch_line)] = (
                None
            )
    return tuple(sorted(found, key=lambda one: (one.call, one.method)))


def _kernels(reached: Iterable[Reached]) -> tuple[Use, ...]:
    found: dict[Use, None] = {}
    for call in reached:
        partner = _partner(call, None)
        if partner.startswith("self."):
            found[_use(call, call.where, "", partner)] = None
    return tuple(sorted(found, key=lambda use: (use.call, use.method)))
