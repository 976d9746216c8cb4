"""The checks of the kernel, in its order, and those that it lacks."""

from __future__ import annotations

from itertools import pairwise

import torch

from .call import Call, demand, name_of, refuse
from .schemas import Rules

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
STATES = (*SIXTEEN_BITS, torch.float32)
ONE_TYPE = ("core_attn_out", "z", "projected_states_ba", "conv_state", "conv_weights", "conv_bias")
PLAIN = ("non_spec_query_start_loc", "non_spec_token_indx", "non_spec_state_indices_tensor")
SPEC = ("spec_query_start_loc", "spec_token_indx", "spec_state_indices_tensor", "num_accepted_tokens")


def check_interface(call: Call, rules: Rules) -> None:
    """Check what the host side of the kernel checks: contiguity, indices, sizes."""
    for name in ("core_attn_out", "z", "projected_states_qkvz", "projected_states_ba"):
        demand(getattr(call, name).is_contiguous(), f"{name} must be contiguous")
    for name in ("conv_state", "ssm_state"):
        demand(getattr(call, name)[0].is_contiguous(), f"{name} of each batch must be contiguous")
    for name in ("conv_weights", "A_log", "dt_bias"):
        demand(getattr(call, name).is_contiguous(), f"{name} must be contiguous")
    demand(
        rules.mixes_groups or not (call.num_spec_decodes and call.sequences),
        "causal_conv1d does not support spec-decode and non-spec (prefill + decode) tokens in the same invocation",
    )
    _check_indices(call, rules)
    _check_sizes(call, rules)
    demand(call.activation in ("silu", "swish"), f"activation is {call.activation}")


def _check_indices(call: Call, rules: Rules) -> None:
    if call.sequences:
        sizes = (call.sequences + 1, call.plain_tokens, call.sequences)
        for name, size in zip(PLAIN, sizes, strict=True):
            _check_index(getattr(call, name), name, (size,), rules)
        initial = call.has_initial_state
        if initial is not None and rules.checks_indices:
            demand(initial.is_contiguous(), "has_initial_state must be contiguous")
            demand(initial.dtype == torch.bool, "has_initial_state must be of bool dtype")
            demand(initial.shape == (call.sequences,), "has_initial_state must have size [num_prefills + num_decodes]")
    if call.num_spec_decodes:
        n = call.num_spec_decodes
        table = call.spec_state_indices_tensor
        columns = 0 if table is None else table.size(-1)
        for name, shape in zip(SPEC, ((n + 1,), (n * columns,), (n, columns), (n,)), strict=True):
            demand(getattr(call, name) is not None, f"{name} must be provided when num_spec_decodes > 0")
            _check_index(getattr(call, name), name, shape, rules)
    if rules.checks_indices:
        demand(call.plain_tokens + call.spec_tokens == call.num_actual_tokens, "tokens must be num_actual_tokens")


def _check_index(index: torch.Tensor | None, name: str, shape: tuple[int, ...], rules: Rules) -> None:
    if index is None:
        demand(name == "non_spec_token_indx", f"{name} must be provided when num_prefills + num_decodes > 0")
        return
    demand(index.is_contiguous(), f"{name} must be contiguous")
    if rules.checks_indices:
        demand(index.dtype == torch.int32, f"{name} must be of int32 dtype")
        demand(index.shape == shape, f"{name} must have size {list(shape)}")


def _check_sizes(call: Call, rules: Rules) -> None:
    heads = (call.v_heads, call.head_v_dim)
    wanted = {
        "core_attn_out": heads,
        "z": heads,
        "projected_states_qkvz": (call.channels + call.v_heads * call.head_v_dim,),
        "projected_states_ba": (2 * call.v_heads,),
    }
    for name, shape in wanted.items():
        tensor = getattr(call, name)
        demand(tensor.shape[1:] == shape, f"{name} is {list(tensor.shape)}, not [tokens, {list(shape)}]")
        rows, tokens = tensor.size(0), call.num_actual_tokens
        if rules.rows_may_exceed:
            demand(rows >= tokens, f"{name}.size(0) ({rows}) must be >= num_actual_tokens ({tokens})")
        else:
            demand(rows == tokens, f"{name}.size(0) ({rows}) must be num_actual_tokens ({tokens})")


def check_delta(call: Call) -> None:
    """Check what the delta rule checks, after the convolution has run and written."""
    demand(call.v_heads % call.k_heads == 0, "num_v_heads % num_k_heads must be 0")
    demand(call.A_log.dtype == torch.float32, f"A_log dtype must be float32, but got {name_of(call.A_log.dtype)}")
    demand(
        call.dt_bias.dtype == call.core_attn_out.dtype,
        "dt_bias dtype must match core_attn_out dtype (float16/bfloat16), but got "
        f"dt_bias={name_of(call.dt_bias.dtype)}, core_attn_out={name_of(call.core_attn_out.dtype)}",
    )
    demand(call.head_k_dim in (32, 64, 128, 256), f"head_k_dim {call.head_k_dim} has no kernel")
    state = call.ssm_state.dtype
    demand(state in STATES, f"ssm_state dtype must be float32/float16/bfloat16, but got {name_of(state)}")
    out = call.core_attn_out.dtype
    demand(
        not call.num_prefills or out in SIXTEEN_BITS,
        f"core_attn_out dtype must be float16/bfloat16, but got {name_of(out)}",
    )


def check_strictly(call: Call) -> None:
    """Refuse what the kernel reads as other bits, or out of bounds."""
    refuse(
        call.projected_states_qkvz.dtype not in STATES, f"projected_states_qkvz is {call.projected_states_qkvz.dtype}"
    )
    for name in ONE_TYPE:
        tensor = getattr(call, name)
        wanted = call.projected_states_qkvz.dtype
        refuse(
            tensor is not None and tensor.dtype != wanted,
            f"{name} is {getattr(tensor, 'dtype', None)} and read as {wanted}, the dtype of projected_states_qkvz",
        )
    for name in (*PLAIN, *SPEC):
        index = getattr(call, name)
        refuse(
            index is not None and index.dtype != torch.int32,
            f"{name} is {getattr(index, 'dtype', None)}, read as int32",
        )
    initial = call.has_initial_state
    refuse(initial is not None and initial.dtype != torch.bool, "has_initial_state is not bool")
    refuse(initial is not None and initial.size(0) != call.sequences, "has_initial_state has another size")
    _refuse_shapes(call)
    if call.sequences:
        _refuse_groups(call)
    if call.num_spec_decodes:
        _refuse_slots(call, call.spec_state_indices_tensor)


def _refuse_shapes(call: Call) -> None:
    channels, width = call.conv_weights.shape[0], call.conv_weights.shape[1]
    refuse(
        call.conv_weights.dim() != 2 or channels != call.channels, f"conv_weights is {list(call.conv_weights.shape)}"
    )
    refuse(not 1 <= width <= 5, f"a convolution of width {width} has no kernel and does nothing")
    refuse(call.conv_bias is not None and call.conv_bias.shape != (channels,), "conv_bias has another size")
    slot = call.conv_state.shape[1:]
    refuse(len(slot) != 2 or slot[0] < width - 1 or slot[1] != channels, f"a slot of conv_state is {list(slot)}")
    slot = call.ssm_state.shape[1:]
    refuse(slot != (call.v_heads, call.head_v_dim, call.head_k_dim), f"a slot of ssm_state is {list(slot)}")
    for name in ("A_log", "dt_bias"):
        refuse(getattr(call, name).shape != (call.v_heads,), f"{name} is {list(getattr(call, name).shape)}")
    # The kernel asserts these, and is compiled without assertions.
    refuse(bool(call.v_heads % 4), f"{call.v_heads} value heads are no multiple of 4")
    refuse(bool(call.head_v_dim % 32), f"head_v_dim {call.head_v_dim} is no multiple of 32")


def _refuse_groups(call: Call) -> None:
    assert call.non_spec_query_start_loc is not None
    starts = call.non_spec_query_start_loc.tolist()
    refuse(len(starts) != call.sequences + 1, "non_spec_query_start_loc has another size")
    refuse(starts[0] != 0 or starts[-1] != call.plain_tokens, f"sequences run over {starts[0]}..{starts[-1]}")
    refuse(any(end <= start for start, end in pairwise(starts)), "a sequence has no token")
    _refuse_slots(call, call.non_spec_state_indices_tensor)


def _refuse_slots(call: Call, slots: torch.Tensor | None) -> None:
    assert slots is not None
    numbers = slots.flatten().tolist()
    count = min(call.conv_state.size(0), call.ssm_state.size(0))
    refuse(any(not 0 <= number < count for number in numbers), f"a slot lies outside 0..{count - 1}: {numbers}")
    refuse(len(set(numbers)) != len(numbers), f"two sequences share a slot: {numbers}")
