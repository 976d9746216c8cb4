"""The operator: convolution first, then the delta rule, each reading memory as its own type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from .arithmetic import Gates, Heads, Parts, convolve, prepare, split, step
from .call import Call, seen_as
from .checks import check_delta, check_interface, check_strictly
from .schemas import Rules


class Sequence(NamedTuple):
    """A sequence of the batch: its tokens, where it reads its states, and after which token it keeps them where."""

    tokens: torch.Tensor
    source: int
    fresh: bool
    keep: dict[int, int]


def run(call: Call, rules: Rules, *, strict: bool) -> None:
    """Do what the operator does, and refuse beforehand what `strict` refuses."""
    check_interface(call, rules)
    if strict:
        # First what the kernel itself raises, so that both modes raise the same where it does.
        check_delta(call)
        check_strictly(call)
    heads = Heads(call.k_heads, call.v_heads, call.head_k_dim, call.head_v_dim)
    sequences = [*_speculative(call), *_plain(call)]
    read = call.projected_states_qkvz.dtype
    rows = slice(call.num_actual_tokens)
    ba = seen_as(call.projected_states_ba, read, "projected_states_ba")
    parts = split(call.projected_states_qkvz[rows], ba[rows], heads, reorder=call.reorder_input)
    mixed = [_convolve(call, parts, sequence, read) for sequence in sequences]
    check_delta(call)
    for sequence, qkv in zip(sequences, mixed, strict=True):
        _recur(call, parts, sequence, qkv, heads)


def _plain(call: Call) -> Iterator[Sequence]:
    """Give the sequences of the group that is not decoded speculatively."""
    if not call.sequences:
        return
    assert call.non_spec_query_start_loc is not None
    assert call.non_spec_state_indices_tensor is not None
    where = call.non_spec_token_indx
    if where is None:
        where = torch.arange(call.num_actual_tokens)
    starts = call.non_spec_query_start_loc.tolist()
    for number, slot in enumerate(call.non_spec_state_indices_tensor.tolist()[: len(starts) - 1]):
        tokens = where[starts[number] : starts[number + 1]]
        fresh = call.has_initial_state is not None and not call.has_initial_state[number]
        if slot >= 0 and tokens.numel():
            yield Sequence(tokens, slot, fresh, {tokens.numel() - 1: slot})


def _speculative(call: Call) -> Iterator[Sequence]:
    """Give the sequences decoded speculatively: they begin after the last accepted token, and keep each state."""
    if not call.num_spec_decodes:
        return
    assert call.spec_token_indx is not None
    assert call.spec_state_indices_tensor is not None
    assert call.num_accepted_tokens is not None
    table = call.spec_state_indices_tensor.tolist()
    tokens = call.spec_token_indx.view(call.num_spec_decodes, -1)
    for number, accepted in enumerate(call.num_accepted_tokens.tolist()):
        slots = table[number]
        yield Sequence(tokens[number], slots[max(accepted - 1, 0)], False, dict(enumerate(slots)))


def _convolve(call: Call, parts: Parts, sequence: Sequence, read: torch.dtype) -> torch.Tensor:
    """Convolve a sequence, keep its last inputs, write z; return q, k and v as the kernel keeps them."""
    weights = seen_as(call.conv_weights, read, "conv_weights")
    bias = None if call.conv_bias is None else seen_as(call.conv_bias, read, "conv_bias")
    states = seen_as(call.conv_state, read, "conv_state")
    z = seen_as(call.z, read, "z")
    past = weights.size(1) - 1
    history = states[sequence.source, :past].clone()
    if sequence.fresh:
        history.zero_()
    window = torch.cat([history, parts.qkv[sequence.tokens]])
    for after, slot in sequence.keep.items():
        states[slot, :past] = window[after + 1 : after + 1 + past]
    z[sequence.tokens] = parts.z[sequence.tokens]
    return convolve(window, weights, bias).to(read)


def _recur(call: Call, parts: Parts, sequence: Sequence, qkv: torch.Tensor, heads: Heads) -> None:
    """Run the delta rule over a sequence, keep its states, write core_attn_out."""
    out = call.core_attn_out
    qkv, b, a = (seen_as(part.contiguous(), out.dtype, "q, k, v") for part in (qkv, *parts[2:]))
    gates = Gates(call.A_log, call.dt_bias)
    tokens = prepare(qkv, b[sequence.tokens], a[sequence.tokens], gates, heads)
    state = call.ssm_state[sequence.source].float()
    if sequence.fresh:
        state = torch.zeros_like(state)
    for number, row in enumerate(sequence.tokens.tolist()):
        state, result = step(state, tokens, number)
        out[row] = result.to(out.dtype)
        if number in sequence.keep:
            call.ssm_state[sequence.keep[number]] = state.to(call.ssm_state.dtype)
