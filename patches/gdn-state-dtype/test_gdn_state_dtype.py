"""Proof of gdn-state-dtype: red on the pristine tree, green on the patched one.

Runs in an environment that holds torch and the vLLM under test (a CPU build), with the tree first on the path:

    PYTHONPATH=TREE python -m pytest patches/gdn-state-dtype/test_gdn_state_dtype.py

No weights, no network, no server: the real config check, the real state calculator of the model's class, and the
real kernels on a state allocated as the two say. Hosts without AMX are stood in for by the one function that vLLM
asks; what a test says of them is thus about vLLM's choices, not about the instructions that a kernel uses.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import _custom_ops as ops
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import ModelRegistry

HEADS = 2
WIDTH = 64
"""Head width: the kernels are compiled for 64 and its multiples."""

GDN = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": HEADS,
    "linear_num_value_heads": HEADS,
    "linear_key_head_dim": WIDTH,
    "linear_value_head_dim": WIDTH,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-next": {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", **GDN, **EXPERTS},
    "qwen3.5": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **GDN},
    "qwen3.5-moe": {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", **GDN, **EXPERTS},
}
NEEDS_TORCHVISION = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None,
    reason="vLLM's module of Qwen3.5 imports torchvision, which is not in this environment",
)
FAMILY = [pytest.param(name, marks=[NEEDS_TORCHVISION] if "3.5" in name else []) for name in MODELS]
PLAIN = {**GDN, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "layer_types": ["full_attention"] * 2}

MODES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no prefix caching": {"enable_prefix_caching": False},
    "prefix caching": {"enable_prefix_caching": True},
    "speculative": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
}


@pytest.fixture(params=[True, False], ids=["amx", "no amx"])
def amx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Say what the host answers when vLLM asks for AMX."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: request.param)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return bool(request.param)


def configure(folder: Path, model: dict[str, Any], **options: Any) -> Any:
    """Return vLLM's configuration for a model of which only config.json exists."""
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", **model}))
    options = {"dtype": "auto", "max_model_len": 256, **options}
    return EngineArgs(model=str(folder), skip_tokenizer_init=True, **options).create_engine_config()


def state_of(config: Any) -> tuple[tuple[int, ...], torch.dtype]:
    """Return shape and dtype of the recurrent state that would be allocated."""
    architecture = config.model_config.architecture
    model, _ = ModelRegistry.resolve_model_cls(architecture, config.model_config)
    dtypes = model.get_mamba_state_dtype_from_config(config)
    return tuple(model.get_mamba_state_shape_from_config(config)[1]), dtypes[1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", FAMILY)
def test_default_state_is_float32(tmp_path: Path, amx: bool, model: str, mode: str) -> None:
    """Allocate in float32 whatever the host, the model of the family and the mode of the cache."""
    config = configure(tmp_path, MODELS[model], **MODES[mode])
    assert config.model_config.dtype == torch.bfloat16
    assert state_of(config)[1] == torch.float32


@pytest.mark.parametrize("asked", ["float32", "bfloat16", "float16"])
def test_state_dtype_that_was_asked_for_works(tmp_path: Path, amx: bool, asked: str) -> None:
    """Keep float32; widen the others, which the kernels do not take."""
    config = configure(tmp_path, MODELS["qwen3-next"], mamba_ssm_cache_dtype=asked)
    assert state_of(config)[1] == torch.float32


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("model", FAMILY)
def test_activations_that_cannot_work_are_refused(tmp_path: Path, amx: bool, model: str, dtype: str) -> None:
    """Refuse with reason and flag while the configuration is checked."""
    with pytest.raises(ValueError, match=rf"(?s){dtype}.*Gated DeltaNet.*bfloat16 only.*--dtype bfloat16"):
        configure(tmp_path, MODELS[model], dtype=dtype)


def test_dtype_of_the_checkpoint_is_refused_too(tmp_path: Path, amx: bool) -> None:
    """Refuse float16 that nobody asked for, and take the flag that the refusal names."""
    model = {**MODELS["qwen3-next"], "torch_dtype": "float16"}
    with pytest.raises(ValueError, match="--dtype bfloat16"):
        configure(tmp_path, model)
    assert state_of(configure(tmp_path, model, dtype="bfloat16"))[1] == torch.float32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_other_models_are_left_alone(tmp_path: Path, amx: bool, dtype: str) -> None:
    """Refuse nothing of a model without such layers."""
    config = configure(tmp_path, PLAIN, dtype=dtype)
    assert config.model_config.dtype == getattr(torch, dtype)
    assert config.cache_config.mamba_ssm_cache_dtype == ("float32" if amx else "auto")


def test_kernels_take_the_state_that_is_allocated(tmp_path: Path, amx: bool) -> None:
    """Prefill in two chunks and decode one token on it, and come near a plain recurrence in float32."""
    shape, dtype = state_of(configure(tmp_path, MODELS["qwen3-next"]))
    assert shape == (HEADS, WIDTH, WIDTH)
    inputs = Inputs(tokens=90)
    state = torch.zeros((4, *shape), dtype=dtype)
    outputs = [inputs.prefill(state, 0, 70), inputs.prefill(state, 70, 89), inputs.decode(state, 89)]
    wanted, last = inputs.reference()
    torch.testing.assert_close(torch.cat(outputs).float(), wanted, rtol=0.05, atol=0.01)
    torch.testing.assert_close(state[SLOT].float(), last, rtol=0.05, atol=0.01)
    assert not state[[0, 1, 3]].any(), "a slot that is not the sequence's was written"


SLOT = 2


class Inputs:
    """One sequence: queries, keys and values in bfloat16, gates as the layer makes them."""

    def __init__(self, tokens: int) -> None:
        torch.manual_seed(0)
        self.q, self.k, self.v = (torch.randn(tokens, HEADS, WIDTH).bfloat16() for _ in range(3))
        self.a, self.b = (torch.randn(tokens, HEADS).bfloat16() for _ in range(2))
        self.a_log = torch.rand(HEADS)
        self.dt_bias = torch.rand(HEADS).bfloat16()

    def prefill(self, state: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Run the prefill kernel as the layer calls it."""
        gate, beta = ops.fused_gdn_gating_cpu(
            A_log=self.a_log, a=self.a[start:end], b=self.b[start:end], dt_bias=self.dt_bias
        )
        out, _ = ops.chunk_gated_delta_rule_cpu(
            query=self.q[None, start:end],
            key=self.k[None, start:end],
            value=self.v[None, start:end],
            g=gate,
            beta=beta,
            initial_state=state,
            output_final_state=True,
            cu_seqlens=torch.tensor([0, end - start], dtype=torch.int32),
            head_first=False,
            use_qk_l2norm_in_kernel=True,
            initial_state_indices=torch.tensor([SLOT], dtype=torch.int32),
        )
        return out[0]

    def decode(self, state: torch.Tensor, at: int) -> torch.Tensor:
        """Run the decode kernel as the layer calls it."""
        out = ops.fused_sigmoid_gating_delta_rule_update_cpu(
            A_log=self.a_log,
            dt_bias=self.dt_bias,
            q=self.q[None, at : at + 1],
            k=self.k[None, at : at + 1],
            v=self.v[None, at : at + 1],
            a=self.a[at : at + 1],
            b=self.b[at : at + 1],
            initial_state_source=state,
            initial_state_indices=torch.tensor([SLOT], dtype=torch.int32),
            cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
            use_qk_l2norm_in_kernel=True,
        )
        return out.reshape(1, HEADS, WIDTH)

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return every output and the last state of the gated delta rule, token by token in float32."""
        q, k, v = (part.float() for part in (self.q, self.k, self.v))
        q, k = (torch.nn.functional.normalize(part, dim=-1) for part in (q, k))
        decay = (-self.a_log.exp() * torch.nn.functional.softplus(self.a.float() + self.dt_bias.float())).exp()
        beta = self.b.float().sigmoid()
        state = torch.zeros(HEADS, WIDTH, WIDTH)
        outputs = []
        for t in range(len(q)):
            state = state * decay[t, :, None, None]
            error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
            state = state + torch.einsum("hk,hv->hkv", k[t], beta[t, :, None] * error)
            outputs.append(torch.einsum("hkv,hk->hv", state, q[t] * WIDTH**-0.5))
        return torch.stack(outputs), state
