"""Find 16-bit scratch tensors of modules that meet the model's own dtype in a kernel call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from seatrial.model.scratch.classes import Reader
from seatrial.model.scratch.found import Allocation, Analysis, Fused, Hazard, Span, Unproven, Use
from seatrial.model.scratch.guards import Guard, exclude, known_dtypes, literal_holds
from seatrial.model.scratch.kernels import takes_float16_alone
from seatrial.model.scratch.roots import walked
from seatrial.model.scratch.tensors import Argument
from seatrial.model.scratch.values import Buffer, Follower, Taken
from seatrial.model.scratch.walk import Reached

Made = Mapping[tuple[str, Span], Sequence[tuple[Guard, ...]]]
"""What held where calls allocated, by module and place."""


def analyse(source: str, path: str, read: Reader = lambda _: None) -> Analysis:
    """Find 16-bit scratch tensors that reach kernels beside the model's dtype.

    The source is read as a syntax tree; nothing is imported or run. Only classes that are modules of torch's are
    looked at, with the methods that they inherit.

    Args:
        path: where the source stands below the tree's root (`vllm/...`); relative imports are read from it.
        read: gives the modules that classes are imported from; without it those classes are unknown.

    Raises:
        IntegrityError: the source is no Python; says where.
    """
    runner = walked(source, path, read)
    if runner is None:
        return Analysis(path, (), (), ())
    reached = list(dict.fromkeys(runner.reached))
    unproven = []
    if runner.budget <= 0:
        unproven.append(
            Unproven(_whole(runner.library.main.tree), "the module calls itself in too many ways to follow")
        )
    here = [call for call in reached if call.home == path]
    return Analysis(path, _hazards(reached, path, runner.made), _fused(here), tuple(unproven), _kernels(here))


def _whole(tree: ast.Module) -> Span:
    last = tree.body[-1]
    return Span(1, 0, last.end_lineno or 1, last.end_col_offset or 0)


def _hazards(reached: Iterable[Reached], path: str, made: Made) -> tuple[Hazard, ...]:
    found: dict[Buffer, dict[Use, None]] = {}
    for call in reached:
        for buffer, use in _uses(call):
            key = Buffer(buffer.site, buffer.cls, buffer.target)
            guards = made.get((path, buffer.site.call_span), [])
            asked = bool(guards) and all(literal_holds(some, buffer.site.dtype) for some in guards)
            if buffer.site.home != path or asked:
                continue
            if use.parameter or takes_float16_alone(call.kernel):
                found.setdefault(key, {})[use] = None
    hazards = []
    for buffer, some in found.items():
        uses = tuple(sorted(some, key=lambda use: (use.call, use.branch_line, use.method, use.argument)))
        met = sorted(
            {use.parameter for use in uses} - {""}, key=lambda name: ("." not in name, "bias" not in name, name)
        )
        parameter = met[0] if met else ""
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
            if known & {buffer.site.dtype, ""} or exclude([*taken.guards, *call.where.guards]):
                continue
            branch = taken.branch or (call.where.branch if taken.method == call.where.method else None)
            yield buffer, _use(call, replace(taken, branch=branch), argument.name, _partner(call, argument, buffer))


def _buffers(argument: Argument) -> set[Buffer]:
    return {atom for atom in argument.value.flat() if isinstance(atom, Buffer)}


def _use(call: Reached, taken: Taken, argument: str, parameter: Follower | None) -> Use:
    return Use(
        method=taken.method,
        branch=taken.branch.text if taken.branch else "",
        branch_line=taken.branch.line if taken.branch else call.call.line,
        kernel=call.kernel,
        call=call.call,
        function=call.function,
        path=call.home,
        argument=argument,
        parameter=parameter.name if parameter else "",
    )


def _partner(call: Reached, besides: Argument | None, buffer: Buffer | None = None) -> Follower | None:
    """Return what a call takes in the model's dtype beside a buffer: a parameter, or else activations.

    Activations alone say little of a tensor that is made for one call: a literal dtype is then what the kernel puts
    out. They count where the same argument follows them on another way to the call, where the buffer outlives the
    call, and where the kernel takes one dtype alone.
    """
    found = [
        atom
        for argument in call.arguments
        if argument is not besides
        for atom in argument.value.flat()
        if isinstance(atom, Follower)
    ]
    if buffer is not None and besides is not None:
        either = any(isinstance(atom, Follower) for atom in besides.value.atoms)
        if not (either or buffer.target.startswith("self.") or takes_float16_alone(call.kernel)):
            found = [atom for atom in found if atom.parameter]
    found.sort(key=lambda atom: (not atom.parameter, "bias" not in atom.name, atom.name))
    return found[0] if found else None


def _fused(reached: Iterable[Reached]) -> tuple[Fused, ...]:
    found: dict[Fused, None] = {}
    for call in reached:
        if takes_float16_alone(call.kernel) and "float16" not in known_dtypes(call.where.guards):
            use = _use(call, call.where, "", None)
            found[Fused(call.cls, use.method, call.function, call.kernel, call.call, use.branch, use.branch_line)] = (
                None
            )
    return tuple(sorted(found, key=lambda one: (one.call, one.method)))


def _kernels(reached: Iterable[Reached]) -> tuple[Use, ...]:
    found: dict[Use, None] = {}
    for call in reached:
        partner = _partner(call, None)
        if partner is not None and partner.parameter:
            found[_use(call, call.where, "", partner)] = None
    return tuple(sorted(found, key=lambda use: (use.call, use.method)))
