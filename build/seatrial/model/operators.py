"""The operators that a base's extensions register, kept as `images/operators/<base>-<platform>.toml`."""

from __future__ import annotations

import json

from pydantic import Field

from seatrial.model.expectation import Allowance
from seatrial.model.values import Frozen, Sha256


class Absent(Frozen):
    """An operator that code for the device calls and this build does not register, and why that is so."""

    operator: str = Field(pattern=r"^\w+::\w+$")
    why: str = Field(min_length=1)


class OperatorList(Frozen):
    """What the extensions of one base register on one platform."""

    base: str
    platform: str
    natives: dict[str, Sha256]
    """Extension module (`vllm._C`) to the digest of its file in upstream's wheel."""
    operators: dict[str, tuple[str, ...]]
    """Extension module to the operators (`namespace::name`) that it registers."""
    absent: tuple[Absent, ...] = ()
    """Written by hand after reading the code; kept when the list is made again."""

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        """Return the absent operators as what inspect may pass over."""
        return tuple(
            Allowance(check="operators-called", pattern=f"{one.operator}: *", why=one.why) for one in self.absent
        )


def operators_text(made: OperatorList) -> str:
    """Return the list as TOML, everything sorted, one operator a line."""
    lines = [
        f"# What vLLM {made.base}'s extensions register on {made.platform}; written by:",
        f"# seatrial lock-operators {made.platform} --base {made.base} --image IMAGE",
        "# [[absent]] is written by hand: code for the device calls it and this build has it not. It is kept.",
        f"base = {json.dumps(made.base)}",
        f"platform = {json.dumps(made.platform)}",
    ]
    for one in sorted(made.absent, key=lambda one: one.operator):
        lines += ["", "[[absent]]", f"operator = {json.dumps(one.operator)}", f"why = {json.dumps(one.why)}"]
    lines += [
        "",
        "[natives]",
        *(f"{json.dumps(name)} = {json.dumps(made.natives[name])}" for name in sorted(made.natives)),
    ]
    lines += ["", "[operators]"]
    for name in sorted(made.operators):
        lines += [f"{json.dumps(name)} = [", *(f"    {json.dumps(op)}," for op in sorted(made.operators[name])), "]"]
    return "\n".join([*lines, ""])
