"""Put a check of dtypes in front of the operator that reinterprets bits when they differ."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from seatrial.model.scratch import Use
from seatrial.stages.repair.edits import Edits, RefusedPlaceError, dotted, inside, text

OPERATOR = "gdn_attention"
ORDER = ("core_attn_out", "z", "projected_states_qkvz", "projected_states_ba")
"""The operator's first parameters, as vllm-xpu-kernels declares them: all in one dtype."""
PARAMETER = "dt_bias"
PARAMETER_AT = 14
_CHOICE = (cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.BaseComp)
"""What may not run a call that stands in it: a check in front of the line would run all the same."""


def check_operators(edits: Edits, calls: Iterable[cst.Call]) -> None:
    """Put an equality check in front of each call of the operator, naming every dtype."""
    for call in calls:
        try:
            _check(edits, call)
        except RefusedPlaceError as refused:
            edits.refuse(refused.line, refused.why)


def operator_calls(edits: Edits, kernels: Iterable[Use]) -> list[cst.Call]:
    """Return the calls of the operator, `torch.ops.<namespace>.gdn_attention`, and those of a name that stands for it.

    Args:
        kernels: the calls of kernels that the analysis came to.
    """
    found = [edits.at(use.call) for use in kernels if _is_operator(use.kernel)]
    found += [node for node in inside(edits.module) if isinstance(node, cst.Call) and _is_operator(dotted(node.func))]
    return [node for node in dict.fromkeys(found) if isinstance(node, cst.Call)]


def _is_operator(name: str) -> bool:
    """Tell the operator; vLLM's own custom operators run a layer's Python, and take other arguments."""
    parts = name.removesuffix(".default").split(".")
    return parts[:2] == ["torch", "ops"] and parts[-1] == OPERATOR and parts[2] != "vllm"


def _check(edits: Edits, call: cst.Call) -> None:
    line = edits.line(call)
    statement = next((node for node in edits.above(call) if isinstance(node, cst.SimpleStatementLine)), None)
    if statement is None or len(statement.body) != 1 or any(isinstance(node, _CHOICE) for node in edits.above(call)):
        raise RefusedPlaceError(line, f"{OPERATOR} does not stand on a line of its own")
    if _is_checked(edits, statement):
        return
    named = {name: _plain(call, name, number, line) for number, name in enumerate(ORDER)}
    named[PARAMETER] = _plain(call, PARAMETER, PARAMETER_AT, line)
    equal = "\n    == ".join(f"{value}.dtype" for value in named.values())
    told = [f'f"{name} {{{value}.dtype}}' for name, value in named.items()]
    lines = ', "\n        '.join(told) + '"'
    code = (
        f"if not (\n    {equal}\n):\n"
        f'    raise RuntimeError(\n        "{OPERATOR} wants one dtype: "\n        {lines}\n    )\n'
    )
    check = cst.parse_statement(code, edits.module.config_for_parsing)

    def put(updated: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.BaseStatement]:
        before = check.with_changes(leading_lines=updated.leading_lines)
        return cst.FlattenSentinel([before, updated.with_changes(leading_lines=[])])

    edits.change(statement, put)


def _is_checked(edits: Edits, statement: cst.SimpleStatementLine) -> bool:
    """Tell whether an earlier repair has put its check in front of a statement."""
    lines = list(getattr(next(edits.above(statement)), "body", ()))
    before = lines[lines.index(statement) - 1] if lines.index(statement) else None
    return isinstance(before, cst.If) and f"{OPERATOR} wants one dtype" in text(before)


def _plain(call: cst.Call, name: str, position: int, line: int) -> str:
    """Return an argument that can be written twice: a name or an attribute."""
    found = next((arg for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)
    if (
        found is None
        and position < len(call.args)
        and all(arg.keyword is None and arg.star == "" for arg in call.args[: position + 1])
    ):
        found = call.args[position]
    value = dotted(found.value) if found is not None else ""
    if not value:
        raise RefusedPlaceError(line, f"{OPERATOR} is not given {name} as a plain name")
    return value
