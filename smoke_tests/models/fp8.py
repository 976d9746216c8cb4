"""Online FP8 in the reference: weights and inputs of linear layers rounded to e4m3 while the model runs.

What a server does with `--quantization fp8` differs between devices: weights have one scale a matrix everywhere,
inputs one scale a tensor, one a token, or are not rounded at all. The reference runs all three ways; the largest
difference sets the tolerance. Head, embedding, convolution and gates of a single output stay as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

INPUTS = ("as-is", "token", "tensor")
"""How inputs may be rounded."""

LARGEST = 448.0
"""Largest number of float8_e4m3fn; source: the OCP 8-bit floating point specification, revision 1.0."""


def rounded(data: torch.Tensor, *, each_row: bool) -> torch.Tensor:
    """Return what is left of a tensor after e4m3, scaled so that the largest value fits."""
    size = data.abs().amax(-1, keepdim=True) if each_row else data.abs().amax()
    scale = (size.float() / LARGEST).clamp_min(1e-12)
    kept = (data.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return (kept.float() * scale).to(data.dtype)


@contextlib.contextmanager
def online_fp8(model: Any, inputs: str) -> Iterator[Any]:
    """Give a model whose linear layers compute with what FP8 leaves of weights and inputs."""
    plain = torch.nn.functional.linear
    head = model.lm_head.weight.data_ptr()

    def linear(data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if weight.data_ptr() == head or weight.shape[0] == 1:
            return plain(data, weight, bias)
        if inputs != "as-is":
            data = rounded(data, each_row=inputs == "token")
        return plain(data, rounded(weight, each_row=False), bias)

    torch.nn.functional.linear = linear
    try:
        yield model
    finally:
        torch.nn.functional.linear = plain
