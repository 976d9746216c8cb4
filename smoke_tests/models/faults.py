"""Small ways to break a model: what the golden answers must see.

Each fault is what a wrong kernel, a wrong weight loader or a wrong cache would do:
one weight matrix, one head, one expert, one state update.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

import torch
from transformers.models.qwen3_next import modeling_qwen3_next as next_code

from smoke_tests.models.prompts import CHUNK

Fault = Callable[[Any, contextlib.ExitStack], None]
"""Breaks a loaded model; what has to be undone goes on the stack."""


@contextlib.contextmanager
def broken(model: Any, fault: Fault) -> Iterator[Any]:
    """Give a broken model; module-level changes are undone at the end."""
    with contextlib.ExitStack() as stack, torch.no_grad():
        fault(model, stack)
        yield model


def weight(path: str, change: Callable[[torch.Tensor], None]) -> Fault:
    """Change one parameter in place."""

    def apply(model: Any, _stack: contextlib.ExitStack) -> None:
        change(model.get_parameter(path).data)

    return apply


def zero(rows: slice) -> Callable[[torch.Tensor], None]:
    """Return a change that zeroes some rows."""

    def change(data: torch.Tensor) -> None:
        data[rows] = 0

    return change


def zero_columns(columns: slice) -> Callable[[torch.Tensor], None]:
    """Return a change that zeroes some columns."""

    def change(data: torch.Tensor) -> None:
        data[:, columns] = 0

    return change


def swap(first: int, second: int) -> Callable[[torch.Tensor], None]:
    """Return a change that swaps two rows."""

    def change(data: torch.Tensor) -> None:
        data[[first, second]] = data[[second, first]]

    return change


def rolled(data: torch.Tensor) -> None:
    """Shift a parameter by one along its last dimension."""
    data.copy_(data.roll(1, -1))


def patched(layer_type: str, name: str, change: Callable[..., Callable[..., Any]]) -> Fault:
    """Wrap a function that the modules of one type call, by attribute or module global."""

    def apply(model: Any, stack: contextlib.ExitStack) -> None:
        if hasattr(next_code, name):
            old = getattr(next_code, name)
            setattr(next_code, name, change(old))
            stack.callback(setattr, next_code, name, old)
        for module in model.modules():
            if type(module).__name__ == layer_type and name in vars(module):
                setattr(module, name, change(getattr(module, name)))

    return apply


def no_update(head: int) -> Callable[..., Callable[..., Any]]:
    """Return a wrapper under which one head's state never takes a new value."""

    def wrap(old: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["beta"] = kwargs["beta"].clone()
            kwargs["beta"][:, :, head] = 0
            return old(*args, **kwargs)

        return call

    return wrap


def forgets(old: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts from an empty state each time."""

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["initial_state"] = None
        return old(*args, **kwargs)

    return call


def transposed(old: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose state is read with its key and value dimensions exchanged."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("initial_state") is not None:
            kwargs["initial_state"] = kwargs["initial_state"].transpose(-1, -2).contiguous()
        return old(*args, **kwargs)

    return call


def left_over(layers: int) -> Callable[..., Callable[..., Any]]:
    """Return a wrapper under which a prompt starts from the state that the layer's last prompt left.

    Args:
        layers: how many layers call the function in one forward.
    """

    def wrap(old: Callable[..., Any]) -> Callable[..., Any]:
        kept: dict[int, Any] = {}
        turn = cycle(range(layers))

        def call(*args: Any, **kwargs: Any) -> Any:
            layer = next(turn)
            if kwargs.get("initial_state") is None:
                kwargs["initial_state"] = kept.get(layer)
            kwargs["output_final_state"] = True
            out, kept[layer] = old(*args, **kwargs)
            return out, kept[layer]

        return call

    return wrap


def forgets_at_chunk_edges(old: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under which each chunk of a prompt starts from an empty state."""

    def call(*args: Any, g: torch.Tensor, beta: torch.Tensor, **kwargs: Any) -> Any:
        parts = []
        state = None
        for at in range(0, g.shape[1], CHUNK):
            piece = slice(at, at + CHUNK)
            more = {**kwargs, "g": g[:, piece], "beta": beta[:, piece]}
            out, state = old(*(arg[:, piece] for arg in args), **more)
            parts.append(out)
        return torch.cat(parts, 1), state

    return call


def other_half(place: int, module: str) -> Fault:
    """Read one 16-bit input of all modules of a type as the other 16-bit type, as a kernel does that checks nothing."""

    def hook(_module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        given = args[place]
        other = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}[given.dtype]
        read = given.contiguous().view(other).to(given.dtype)
        return (*args[:place], read, *args[place + 1 :])

    def apply(model: Any, stack: contextlib.ExitStack) -> None:
        for found in model.modules():
            if type(found).__name__ == module:
                stack.callback(found.register_forward_pre_hook(hook).remove)

    return apply


LAYER = "model.layers"
GDN = "Qwen3NextGatedDeltaNet"
RECURRENT, CHUNKED = "torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"

FAULTS: Mapping[str, Mapping[str, Fault]] = {
    "qwen3": {
        "one head of layer 1 is silent": weight(f"{LAYER}.1.self_attn.o_proj.weight", zero_columns(slice(64, 128))),
        "one key head of layer 0 is zero": weight(f"{LAYER}.0.self_attn.k_proj.weight", zero(slice(64, 128))),
        "a norm weight of layer 0 is shifted by one": weight(f"{LAYER}.0.input_layernorm.weight", rolled),
        "q_norm of layer 1 is shifted by one": weight(f"{LAYER}.1.self_attn.q_norm.weight", rolled),
        "16 of 256 rows of up_proj are zero": weight(f"{LAYER}.1.mlp.up_proj.weight", zero(slice(0, 16))),
        "16 of 256 columns of down_proj are zero": weight(
            f"{LAYER}.0.mlp.down_proj.weight", zero_columns(slice(240, 256))
        ),
    },
    "qwen3-next": {
        "one softmax head is silent": weight(f"{LAYER}.3.self_attn.o_proj.weight", zero_columns(slice(64, 128))),
        "one delta-net head of layer 1 is silent": weight(
            f"{LAYER}.1.linear_attn.out_proj.weight", zero_columns(slice(128, 256))
        ),
        "one head of layer 0 never updates its state": patched(GDN, CHUNKED, no_update(3)),
        "the state is lost between steps": patched(GDN, RECURRENT, forgets),
        "one head does not update its state while decoding": patched(GDN, RECURRENT, no_update(3)),
        "the state is read transposed while decoding": patched(GDN, RECURRENT, transposed),
        "a prompt starts from the state of the one before": patched(GDN, CHUNKED, left_over(3)),
        "the state is lost at chunk edges": patched(GDN, CHUNKED, forgets_at_chunk_edges),
        "z is read in the other 16-bit type": other_half(1, "Qwen3NextRMSNormGated"),
        "the core's output is read in the other 16-bit type": other_half(0, "Qwen3NextRMSNormGated"),
        "the convolution is shifted by one": weight(f"{LAYER}.0.linear_attn.conv1d.weight", rolled),
        "A_log of layer 2 is shifted by one": weight(f"{LAYER}.2.linear_attn.A_log", rolled),
        "dt_bias of layer 1 is shifted by one": weight(f"{LAYER}.1.linear_attn.dt_bias", rolled),
        "two experts of layer 1 are exchanged": weight(f"{LAYER}.1.mlp.experts.down_proj", swap(3, 4)),
        "two rows of a router are exchanged": weight(f"{LAYER}.2.mlp.gate.weight", swap(1, 2)),
        "the shared expert's gate of layer 0 is zero": weight(
            f"{LAYER}.0.mlp.shared_expert_gate.weight", zero(slice(0, 1))
        ),
    },
}  # fmt: skip
"""Faults a model."""

GROSS = (
    "a prompt starts from the state of the one before",
    "the state is lost at chunk edges",
    "z is read in the other 16-bit type",
    "the core's output is read in the other 16-bit type",
)
"""Faults that are seen through the rounding of FP8 as well; the others are left to the 16-bit types."""
