"""`torch.ops._xpu_C.gdn_attention` and the vendor's fused calls for the CPU: a contract to test against, torch alone.

The operator is vllm-xpu-kernels' (https://github.com/vllm-project/vllm-xpu-kernels): its schema stands in
csrc/xpu/torch_bindings.cpp, its checks in csrc/xpu/gdn_attn (gdn_attn_interface.cpp, gated_delta_rule.hpp,
xe_2/chunk_gated_delta_rule_kernels_xe2.hpp); the arithmetic is written anew. vLLM 0.15.1 pins no version of it, as its
XPU platform is built on intel-extension-for-pytorch; the versions that matter are side by side in `schemas.RULES`:

0.1.3 to 0.1.5   Read A_log and ssm_state as the activations' type and check no dtype. Not kept: nobody may use them.
0.1.7            What the downstream image builds (commit c968ba9 in vllm/docker/Dockerfile of intel/llm-scaler at
                 vllm-0.14.0-b8.3.1). Since 0.1.6: A_log in float32, dt_bias like core_attn_out, ssm_state as it is.
                 Of index tensors only the contiguity is checked; all buffers have num_actual_tokens rows.
0.1.9            Adds speculative decoding, checks of int32 and bool, and rows beyond num_actual_tokens.
0.1.13.1         (From 0.1.12.1) refuses speculative decodes beside others in one call. The main branch (4543b58)
                 takes both again and splits the operator in four; as one call it behaves as 0.1.9 does.

The kernel casts pointers without a look at dtypes: what is neither checked nor equal is read as other bits. `strict`
refuses all of that, and what indexes memory out of bounds. Without it the same wrong bits are read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch

from . import fused
from .call import Call, ContractError
from .kernel import run
from .schemas import RULES

__all__ = ["ContractError", "register", "registered"]


class Registration:
    """An operator, and a module of fused calls, that are there until `remove`; those before it come back then."""

    _stack: ClassVar[list[Registration]] = []

    def __init__(self, version: str, *, strict: bool, with_fused: bool) -> None:
        self._rules, self._strict, self._fused = RULES[version], strict, with_fused
        self._library: torch.library.Library | None = None
        if self._stack:
            self._stack[-1]._close()
        self._stack.append(self)
        self._open()

    def remove(self) -> None:
        """Take everything away again, latest registration first."""
        assert self._stack[-1] is self
        self._stack.pop()
        self._close()
        if self._stack:
            self._stack[-1]._open()

    def _open(self) -> None:
        rules, strict = self._rules, self._strict
        names = [argument.name for argument in torch._C.parse_schema(f"_xpu_C::{rules.schema}").arguments]

        def implementation(*given: object, **named: object) -> None:
            run(Call(**dict(zip(names, given, strict=False)), **named), rules, strict=strict)

        self._library = torch.library.Library("_xpu_C", "FRAGMENT")
        self._library.define(rules.schema)
        self._library.impl("gdn_attention", implementation, "CPU")
        self._library.impl("gdn_attention", lambda *given, **named: None, "Meta")
        if self._fused:
            fused.install(strict=strict)

    def _close(self) -> None:
        assert self._library is not None
        self._library._destroy()
        self._library = None
        if self._fused:
            fused.uninstall()


def register(version: str = "0.1.9", *, strict: bool = True, with_fused: bool = False) -> Registration:
    """Register the operator of a version, and on request the fused calls as module custom_esimd_kernels_vllm."""
    return Registration(version, strict=strict, with_fused=with_fused)


@contextmanager
def registered(version: str = "0.1.9", *, strict: bool = True, with_fused: bool = False) -> Iterator[None]:
    """Register for the length of a block."""
    registration = register(version, strict=strict, with_fused=with_fused)
    try:
        yield
    finally:
        registration.remove()
