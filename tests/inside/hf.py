"""Hugging Face's Gated DeltaNet layer of Qwen3-Next as the reference, with random weights and short sequences."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDynamicCache, Qwen3NextGatedDeltaNet

WIDTH = 4
# Layers this small only lose by threads.
torch.set_num_threads(1)


@dataclass
class Truth:
    """What the reference has for one sequence."""

    output: torch.Tensor
    """[tokens, hidden_size]"""
    core: torch.Tensor
    """[tokens, v_heads, v_dim], what the norm takes."""
    z: torch.Tensor
    """[tokens, v_heads, v_dim], what gates the norm."""
    conv: torch.Tensor
    """[width - 1, channels]"""
    state: torch.Tensor
    """[v_heads, v_dim, k_dim]"""


def make_config(k_heads: int = 2, v_heads: int = 8, head_dim: int = 32) -> Qwen3NextConfig:
    """Return a config with one layer, linear attention; head_dim is that of keys and values."""
    return Qwen3NextConfig(
        hidden_size=64,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=k_heads,
        linear_num_value_heads=v_heads,
        linear_key_head_dim=head_dim,
        linear_value_head_dim=head_dim,
        linear_conv_kernel_dim=WIDTH,
        rms_norm_eps=1e-6,
        hidden_act="silu",
    )


def make_layer(config: Qwen3NextConfig, dtype: torch.dtype) -> Qwen3NextGatedDeltaNet:
    """Return a layer in float32 whose weights are exact in `dtype`, with decays that remember hundreds of tokens."""
    torch.manual_seed(20)
    layer = Qwen3NextGatedDeltaNet(config, 0).eval()
    with torch.no_grad():
        layer.A_log.copy_(torch.empty_like(layer.A_log).uniform_(0.002, 0.5).log())
        layer.dt_bias.copy_(torch.randn_like(layer.dt_bias))
        layer.norm.weight.copy_(1 + 0.2 * torch.randn_like(layer.norm.weight))
        layer.in_proj_qkvz.weight.mul_(4)
        layer.in_proj_ba.weight.mul_(4)
        for name, parameter in layer.named_parameters():
            if name != "A_log":
                parameter.copy_(parameter.to(dtype).float())
    return layer


def in_dtype(layer: Qwen3NextGatedDeltaNet, dtype: torch.dtype) -> Qwen3NextGatedDeltaNet:
    """Return a copy that computes in `dtype`; A_log stays in float32, as checkpoints' loaders keep it."""
    other = copy.deepcopy(layer).to(dtype)
    other.A_log.data = layer.A_log.data.clone()
    return other


@torch.inference_mode()
def ask(layer: Qwen3NextGatedDeltaNet, config: Qwen3NextConfig, prompt: torch.Tensor) -> Truth:
    """Run a whole sequence [tokens, hidden_size] through the reference at once."""
    seen: list[torch.Tensor] = []
    hook = layer.norm.register_forward_pre_hook(lambda _, given: seen.extend(part.float() for part in given))
    cache = Qwen3NextDynamicCache(config)
    dtype = layer.out_proj.weight.dtype
    output = layer(prompt.to(dtype)[None], cache_params=cache)[0].float()
    hook.remove()
    core, z = (part.view(prompt.size(0), -1, config.linear_value_head_dim) for part in seen)
    conv = cache.conv_states[0][0, :, 1 - WIDTH :].t().float()
    return Truth(output, core, z, conv, cache.recurrent_states[0][0].transpose(1, 2).float())


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the length of the difference over the length of what was wanted."""
    got, wanted = got.float(), wanted.float()
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    assert got.isfinite().all()
    return float((got - wanted).norm() / wanted.norm())
