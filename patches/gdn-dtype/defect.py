"""Find scratch tensors of a model's layers that are allocated in a literal 16-bit dtype and meet the model's own.

The sources are walked as syntax trees (`seatrial.model.scratch`): what `__init__` and the forward methods allocate is
followed through attributes, slices, views, names and helpers to the kernels that it reaches.

- `scratch-dtype`: a float16 or bfloat16 buffer is given to a kernel that also takes a parameter in the model's dtype,
  or to one that takes float16 alone. In another dtype the first request ends the engine, or bits are read wrongly.
- `fused-float16`: a kernel that reads everything as float16 can be reached by a model in bfloat16.

A buffer that is taken only where the model is known to have its dtype is none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from seatrial.model.fixes import Finding
from seatrial.model.modules import parse
from seatrial.model.scratch import Analysis, Fused, Hazard, Use, analyse, source_text, worth_parsing
from seatrial.model.tree import Tree

FIX = "gdn-dtype"
BUFFER, FUSED = "scratch-dtype", "fused-float16"
PACKAGE = "vllm/"
SHOWN = 4
"""Kernels that a message names for one branch."""
LAYER, PARAMETER = b"gdn_attention", b"dt_bias"
"""Stand in every module that runs a Gated DeltaNet layer's kernel."""


def subject(tree: Tree) -> bool:
    """Tell whether the tree has Gated DeltaNet layers, or anything that has the defect."""
    return any(LAYER in data and PARAMETER in data for _, data in _modules(tree)) or bool(detect(tree))


def detect(tree: Tree) -> list[Finding]:
    """Return a finding for each buffer, and for each call of a kernel that bfloat16 must not reach."""

    def read(path: str) -> ast.Module | None:
        if not tree.has(path):
            return None
        data = tree.read(path)
        return parse(data, path) if worth_parsing(data, path) else None

    found: list[Finding] = []
    for path, data in _modules(tree):
        if worth_parsing(data, path):
            found += _findings(analyse(source_text(data, path), path, read))
    return found


def _modules(tree: Tree) -> Iterator[tuple[str, bytes]]:
    for path in tree.paths():
        if path.startswith(PACKAGE) and path.endswith(".py"):
            yield path, tree.read(path)


def _findings(analysis: Analysis) -> Iterator[Finding]:
    for hazard in analysis.hazards:
        yield Finding(
            fix=FIX,
            part=BUFFER,
            path=analysis.path,
            line=hazard.allocation.call_span.line,
            message=_buffer_message(hazard, analysis.path),
        )
    for fused in _each_once(analysis.fused):
        yield Finding(fix=FIX, part=FUSED, path=analysis.path, line=fused.call.line, message=_fused_message(fused))


def _buffer_message(hazard: Hazard, path: str) -> str:
    made = hazard.allocation
    name = made.target if made.target.startswith("self.") else f"{made.target or 'a tensor'} of {made.function}"
    if hazard.kind == "mismatch":
        why = f"goes to kernels beside {hazard.parameter}, which has the model's dtype"
    else:
        why = "goes to kernels that read float16 alone"
    return f"{hazard.cls}: {name} is {made.dtype} in every model and {why}: {'; '.join(_places(hazard.uses, path))}"


def _places(uses: Iterable[Use], path: str) -> Iterator[str]:
    """Yield each branch of each forward method once, with the kernels that the buffer reaches from it."""
    kernels: dict[str, dict[str, None]] = {}
    for use in uses:
        where = f" where {use.branch} (line {use.branch_line})" if use.branch else ""
        line = f"{use.call.line}" if use.path == path else f"{use.path.rpartition('/')[2]}:{use.call.line}"
        kernels.setdefault(f"{_method(use.method)}{where}", {})[f"{_short(use.kernel)} ({line})"] = None
    for where, called in kernels.items():
        names = list(called)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield f"{where} to {', '.join(names[:SHOWN])}{more}"


def _method(name: str) -> str:
    return name.rpartition(".")[2]


def _short(kernel: str) -> str:
    return kernel if kernel.startswith("torch.ops.") else kernel.rpartition(".")[2]


def _each_once(fused: Iterable[Fused]) -> list[Fused]:
    return list({one.call: one for one in fused}.values())


def _fused_message(fused: Fused) -> str:
    where = f" where {fused.branch} (line {fused.branch_line})" if fused.branch else ""
    return (
        f"{fused.cls}: {_method(fused.function)}{where} calls {_short(fused.kernel)} in every dtype,"
        " and that kernel reads float16 alone"
    )
