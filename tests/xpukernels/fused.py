"""The vendor's fused calls, float16 only, under the names of its package custom_esimd_kernels_vllm.

Signatures and layouts are those of vllm/custom-esimd-kernels-vllm in https://github.com/intel/llm-scaler at tag
vllm-0.14.0-b8.3.1 (python/custom_esimd_kernels_vllm/ops.py and csrc/xpu), arithmetic is written anew. Those calls check
nothing and read every 16-bit tensor as float16; `strict` refuses another dtype. Weights are FP8 with one float32 scale;
subnormal weights, which the GPU takes for zero, keep their value here.
"""

# The signatures are not ours.
# ruff: noqa: PLR0917

from __future__ import annotations

import sys
import types

import torch
from torch.nn import functional

from .arithmetic import Gates, Heads, convolve, prepare, split, step
from .call import ContractError, refuse, seen_as

MODULE = "custom_esimd_kernels_vllm"
HALF = torch.float16
calls: dict[str, int] = {}
"""How often each fused call was reached since `install`."""
_strict = {"on": True}


def _halves(call: str, **tensors: torch.Tensor) -> list[torch.Tensor]:
    """Count a call and return its tensors as float16."""
    calls[call] = calls.get(call, 0) + 1
    for name, tensor in tensors.items():
        if _strict["on"]:
            refuse(tensor.dtype != HALF, f"{call} reads {name} as float16, but it is {tensor.dtype}")
            refuse(
                name not in {"conv_state", "ssm_state"} and not tensor.is_contiguous(),
                f"{call}: {name} is strided",
            )
    return [seen_as(tensor, HALF, f"{call}: {name}") for name, tensor in tensors.items()]


def _weight(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    if weight.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2) or scale.dtype != torch.float32:
        raise ContractError(f"not checked by the kernel: weight is {weight.dtype}, scale {scale.dtype}")
    return weight.float() * scale


def _normed(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    return wide * functional.silu(z.float())


def esimd_gemm_fp8_pert(
    input: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, output: torch.Tensor
) -> torch.Tensor:
    """Multiply [rows, inputs] by [outputs, inputs] into [rows, outputs]."""
    x, out = _halves("esimd_gemm_fp8_pert", input=input, output=output)
    out.copy_(x.float() @ _weight(weight, weight_scale).t())
    return output


def esimd_gemv_fp8_pert_fused2(
    input: torch.Tensor,
    w0: torch.Tensor,
    s0: torch.Tensor,
    o0: torch.Tensor,
    w1: torch.Tensor,
    s1: torch.Tensor,
    o1: torch.Tensor,
) -> torch.Tensor:
    """Multiply one row by two matrices."""
    x, first, second = _halves("esimd_gemv_fp8_pert_fused2", input=input, o0=o0, o1=o1)
    first.copy_(x.float() @ _weight(w0, s0).t())
    second.copy_(x.float() @ _weight(w1, s1).t())
    return o0


def esimd_rms_norm_gated(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, eps: float
) -> torch.Tensor:
    """Norm [rows, size] and gate it with SiLU of z."""
    wide, gate, scale, out = _halves("esimd_rms_norm_gated", x=x, z=z, weight=weight, output=output)
    out.copy_(_normed(wide, gate, scale, eps))
    return output


def esimd_norm_gemv_fp8_pert(
    x: torch.Tensor,
    z: torch.Tensor,
    norm_weight: torch.Tensor,
    gemv_weight: torch.Tensor,
    gemv_scale: torch.Tensor,
    output: torch.Tensor,
    HV: int,
    V: int,
    eps: float,
) -> torch.Tensor:
    """Norm and gate the [HV, V] of one token, then project it."""
    wide, gate, scale, out = _halves("esimd_norm_gemv_fp8_pert", x=x, z=z, norm_weight=norm_weight, output=output)
    normed = _normed(wide.view(HV, V), gate.view(HV, V), scale, eps)
    out.copy_(normed.view(1, -1) @ _weight(gemv_weight, gemv_scale).t())
    return output


def esimd_gdn_conv_fused(
    qkvz: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor,
    conv_state_indices: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    ba: torch.Tensor,
    ssm_state: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    output: torch.Tensor,
    z_out: torch.Tensor,
    N: int,
    H: int,
    HV: int,
    K: int,
    V: int,
    scale: float,
) -> torch.Tensor:
    """Decode one token of each of N sequences; the layout is by key head, the state always continued."""
    (qkvz, conv_state, conv_weight, conv_bias, a_log, dt_bias, ba, ssm_state, out, gate) = _halves(
        "esimd_gdn_conv_fused",
        qkvz=qkvz,
        conv_state=conv_state,
        conv_weight=conv_weight,
        conv_bias=conv_bias,
        A_log=A_log,
        dt_bias=dt_bias,
        ba=ba,
        ssm_state=ssm_state,
        output=output,
        z_out=z_out,
    )
    if _strict["on"]:
        refuse((K, V, conv_weight.size(1)) != (128, 128, 4), f"heads of {K} and {V}, width {conv_weight.size(1)}")
        refuse(4 * H + HV > 32, f"{H} key and {HV} value heads need more than 32 threads")
        refuse(abs(scale - K**-0.5) > 1e-6, f"a scale of {scale}")
        for indices in (conv_state_indices, ssm_state_indices):
            refuse(indices.dtype != torch.int32 or indices.numel() < N, "slots are not N numbers of int32")
    heads = Heads(H, HV, K, V)
    parts = split(qkvz[:N], ba[:N], heads, reorder=False)
    gate[:N] = parts.z
    for row in range(N):
        conv, slot = int(conv_state_indices[row]), int(ssm_state_indices[row])
        window = torch.cat([conv_state[conv, :3], parts.qkv[row : row + 1]])
        mixed = convolve(window, conv_weight, conv_bias)
        tokens = prepare(mixed, parts.b[row : row + 1], parts.a[row : row + 1], Gates(a_log, dt_bias), heads)
        if slot < 0:
            out[row] = 0
        else:
            state, result = step(ssm_state[slot].float(), tokens, 0)
            ssm_state[slot] = state.to(HALF)
            out[row] = result.to(HALF)
        if conv >= 0:
            conv_state[conv, :3] = window[1:]
    return output


FUSED = (
    esimd_gdn_conv_fused,
    esimd_gemm_fp8_pert,
    esimd_gemv_fp8_pert_fused2,
    esimd_norm_gemv_fp8_pert,
    esimd_rms_norm_gated,
)


def install(*, strict: bool) -> None:
    """Put a module of the vendor's name where imports find it."""
    calls.clear()
    _strict["on"] = strict
    module = types.ModuleType(MODULE)
    for call in FUSED:
        setattr(module, call.__name__, call)
    sys.modules[MODULE] = module


def uninstall() -> None:
    """Take that module away."""
    sys.modules.pop(MODULE, None)
