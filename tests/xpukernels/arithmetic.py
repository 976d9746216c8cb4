"""Gated DeltaNet token by token in float32."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

EPS = 1e-6


class Heads(NamedTuple):
    """The heads of one rank."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int


class Parts(NamedTuple):
    """What the two projections hold, by token."""

    qkv: torch.Tensor
    """[tokens, channels]: all q, then all k, then all v."""
    z: torch.Tensor
    """[tokens, v_heads, v_dim]"""
    b: torch.Tensor
    """[tokens, v_heads]"""
    a: torch.Tensor
    """[tokens, v_heads]"""


def split(qkvz: torch.Tensor, ba: torch.Tensor, heads: Heads, *, reorder: bool) -> Parts:
    """Take the projections apart: by kind where `reorder`, else by key head and then by kind."""
    tokens = qkvz.size(0)
    group = heads.v_heads // heads.k_heads
    if reorder:
        keys, values = heads.k_heads * heads.k_dim, heads.v_heads * heads.v_dim
        q, k, v, z = qkvz.split([keys, keys, values, values], dim=1)
        b, a = ba.chunk(2, dim=1)
    else:
        sizes = [heads.k_dim, heads.k_dim, group * heads.v_dim, group * heads.v_dim]
        q, k, v, z = (part.flatten(1) for part in qkvz.unflatten(1, (heads.k_heads, -1)).split(sizes, dim=2))
        b, a = (part.flatten(1) for part in ba.unflatten(1, (heads.k_heads, -1)).chunk(2, dim=2))
    return Parts(torch.cat([q, k, v], dim=1), z.reshape(tokens, heads.v_heads, heads.v_dim), b, a)


def convolve(window: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return SiLU of the depthwise convolution of [width - 1 + tokens, channels] with [channels, width], in float32."""
    tokens = window.size(0) - weights.size(1) + 1
    out = torch.zeros(tokens, window.size(1))
    for tap in range(weights.size(1)):
        out += window[tap : tap + tokens].float() * weights[:, tap].float()
    if bias is not None:
        out += bias.float()
    return functional.silu(out)


class Gates(NamedTuple):
    """A layer's parameters of decay."""

    a_log: torch.Tensor
    dt_bias: torch.Tensor


class Tokens(NamedTuple):
    """What the recurrence takes for some tokens, in float32, heads repeated, q and k normalised."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor


def prepare(qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, gates: Gates, heads: Heads) -> Tokens:
    """Turn convolved [tokens, channels] and the gates' inputs into what the recurrence takes."""
    keys, values = heads.k_heads * heads.k_dim, heads.v_heads * heads.v_dim
    q, k, v = qkv.float().split([keys, keys, values], dim=1)
    q, k = (part.unflatten(1, (heads.k_heads, heads.k_dim)) for part in (q, k))
    q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + EPS) for part in (q, k))
    group = heads.v_heads // heads.k_heads
    q, k = (part.repeat_interleave(group, dim=1) for part in (q * heads.k_dim**-0.5, k))
    rate = functional.softplus(a.float() + gates.dt_bias.float(), threshold=20.0)
    decay = torch.exp(-gates.a_log.float().exp() * rate)
    return Tokens(q, k, v.unflatten(1, (heads.v_heads, heads.v_dim)), decay, torch.sigmoid(b.float()))


def step(state: torch.Tensor, tokens: Tokens, at: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state [v_heads, v_dim, k_dim] after a token, and that token's output [v_heads, v_dim]."""
    q, k, v, decay, beta = (part[at] for part in tokens)
    state = state * decay[:, None, None]
    memory = (state @ k[:, :, None]).squeeze(-1)
    delta = (v - memory) * beta[:, None]
    state = state + delta[:, :, None] * k[:, None, :]
    return state, (state @ q[:, :, None]).squeeze(-1)
