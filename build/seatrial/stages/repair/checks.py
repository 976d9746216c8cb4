"""Put a check of dtypes in front of the operator that reinterprets bits when they differ."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from seatrial.stages.repair.edits import Edits, RefusedPlaceError, dotted, inside

OPERATOR = "gdn_attention"
ORDER = ("core_attn_out", "z", "projected_states_qkvz", "projected_states_ba")
"""The operator's first parameters, as vllm-xpu-kernels declares them: all in one dtype."""
PARAMETER = "dt_bias"
PARAMETER_AT = 14


def check_operators(edits: Edits, calls: Iterable[cst.Call]) -> None:
    """Put an equality check in front of each call of the operator, naming every dtype."""
    for call in calls:
        try:
            _check(edits, call)
        except RefusedPlaceError as refused:
            edits.refuse(refused.line, refused.why)


def operator_calls(module: cst.Module) -> list[cst.Call]:
    """Return the calls of the operator: `torch.ops.<namespace>.gdn_attention`."""
    return [
        node
        for node in inside(module)
        if isinstance(node, cst.Call)
        and dotted(node.func).startswith("torch.ops.")
        and dotted(node.func).endswith(f".{OPERATOR}")
    ]


def _check(edits: Edits, call: cst.Call) -> None:
    line = edits.line(call)
    statement = next((node for node in edits.above(call) if isinstance(node, cst.SimpleStatementLine)), None)
    if statement is None or len(statement.body) != 1:
        raise RefusedPlaceError(line, f"{OPERATOR} does not stand on a line of its own")
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
