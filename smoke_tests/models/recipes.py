"""The tiny models: what they are made of, and how they are written.

Weights are scaled by fan-in, so activations stay near one and the reference's own
bf16-to-fp32 difference stays far below what a fault makes. The last dimensions of
the Qwen3-Next residual stream hold a routing code that comes from the token alone
and that no block writes to: its experts are chosen with a wide margin, so rounding
never flips a route, while a wrong route changes the answer.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from smoke_tests.models.tokenizer import VOCAB_SIZE, speakable_ids, special_ids, write_json, write_tokenizer
from smoke_tests.models.weights import Tensor, bf16, normal, with_rows, write_safetensors

CONTEXT = 4096
"""Positions of both models, enough for prompts that are prefilled in chunks."""

SHARPNESS = 3.0
"""Standard deviation of the logits: sharp enough for clear greedy choices."""


@dataclass
class Maker:
    """Collects tensors of one model; every tensor is seeded by model and name."""

    model: str
    hidden: int
    reserved: int = 0
    """Last dimensions of the residual stream that no block writes to."""
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def matrix(self, name: str, out: int, width: int, gain: float = 1.0) -> None:
        """Add a matrix that keeps the scale of its input times `gain`."""
        self.tensors[name] = normal(f"{self.model}/{name}", (out, width), std=gain / sqrt(width))

    def writer(self, name: str, width: int, gain: float) -> None:
        """Add a matrix that writes into the residual stream, outside its reserved dimensions."""
        self.matrix(name, self.hidden, width, gain)
        free = self.hidden - self.reserved
        self.tensors[name] = with_rows(self.tensors[name], lambda i, row: row if i < free else bytes(len(row)))

    def vector(self, name: str, size: int, mean: float, std: float = 0.1) -> None:
        """Add a vector around a mean."""
        self.tensors[name] = normal(f"{self.model}/{name}", (size,), std=std, mean=mean)

    def ends(self, norm_mean: float) -> None:
        """Add embedding, last norm and head; only speakable tokens can be said."""
        hidden = self.hidden
        self.tensors["model.embed_tokens.weight"] = normal(f"{self.model}/embed", (VOCAB_SIZE, hidden), std=1.0)
        self.vector("model.norm.weight", hidden, norm_mean)
        self.matrix("lm_head.weight", VOCAB_SIZE, hidden, SHARPNESS)
        said = speakable_ids()
        head = self.tensors["lm_head.weight"]
        self.tensors["lm_head.weight"] = with_rows(head, lambda i, row: row if i in said else bytes(len(row)))


def common_config() -> dict[str, Any]:
    """Return the settings that both models share."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": special_ids()["<|im_end|>"],
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCAB_SIZE,
    }


def attention(make: Maker, prefix: str, *, heads: int, kv_heads: int, size: int, norm_mean: float, gated: bool) -> None:
    """Add one softmax attention; `gated` doubles the query projection by an output gate."""
    make.matrix(f"{prefix}.q_proj.weight", heads * size * (2 if gated else 1), make.hidden)
    make.matrix(f"{prefix}.k_proj.weight", kv_heads * size, make.hidden)
    make.matrix(f"{prefix}.v_proj.weight", kv_heads * size, make.hidden)
    make.writer(f"{prefix}.o_proj.weight", heads * size, 2.0 if gated else 1.5)
    make.vector(f"{prefix}.q_norm.weight", size, norm_mean + 0.5)
    make.vector(f"{prefix}.k_norm.weight", size, norm_mean + 0.5)


def feed_forward(make: Maker, prefix: str, width: int) -> None:
    """Add one gated feed-forward block."""
    make.matrix(f"{prefix}.gate_proj.weight", width, make.hidden, 1.5)
    make.matrix(f"{prefix}.up_proj.weight", width, make.hidden, 1.5)
    make.writer(f"{prefix}.down_proj.weight", width, 1.0)


def qwen3() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return configuration and weights of the dense model."""
    hidden, layers, heads, kv_heads, size, width = 128, 2, 4, 2, 64, 256
    make = Maker("qwen3", hidden)
    make.ends(1.0)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        make.vector(f"{prefix}.input_layernorm.weight", hidden, 1.0)
        make.vector(f"{prefix}.post_attention_layernorm.weight", hidden, 1.0)
        attention(make, f"{prefix}.self_attn", heads=heads, kv_heads=kv_heads, size=size, norm_mean=1.0, gated=False)
        feed_forward(make, f"{prefix}.mlp", width)
    config = common_config() | {
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": size,
        "hidden_size": hidden,
        "intermediate_size": width,
        "max_window_layers": layers,
        "model_type": "qwen3",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    return config, make.tensors


EXPERTS, CHOSEN = 16, 2
"""Experts of Qwen3-Next and how many of them a token takes; the routing code has one dimension an expert."""


def delta_net(make: Maker, prefix: str, *, k_heads: int, v_heads: int, size: int, kernel: int) -> None:
    """Add one Gated DeltaNet: gates that let the state live for some tens of tokens."""
    keys, values = k_heads * size, v_heads * size
    make.matrix(f"{prefix}.in_proj_qkvz.weight", 2 * keys + 2 * values, make.hidden)
    make.matrix(f"{prefix}.in_proj_ba.weight", 2 * v_heads, make.hidden)
    conv = normal(f"{make.model}/{prefix}.conv1d", (2 * keys + values, 1, kernel), std=0.7)
    make.tensors[f"{prefix}.conv1d.weight"] = conv
    make.vector(f"{prefix}.A_log", v_heads, -2.0, 0.5)
    make.vector(f"{prefix}.dt_bias", v_heads, 0.0, 0.5)
    make.vector(f"{prefix}.norm.weight", size, 1.0)
    make.writer(f"{prefix}.out_proj.weight", values, 1.5)


def experts(make: Maker, prefix: str, width: int) -> None:
    """Add router, experts and shared expert; the router reads the routing code and, faintly, the rest."""
    hidden = make.hidden
    free = hidden - make.reserved
    router = normal(f"{make.model}/{prefix}.gate", (EXPERTS, hidden), std=0.01)

    def code(expert: int, row: bytes) -> bytes:
        return row[: 2 * free] + b"".join(bf16(1.0 if dim == expert else 0.0) for dim in range(EXPERTS))

    make.tensors[f"{prefix}.gate.weight"] = with_rows(router, code)
    for expert in range(EXPERTS):
        feed_forward(make, f"{prefix}.experts.{expert}", width)
    feed_forward(make, f"{prefix}.shared_expert", width)
    make.matrix(f"{prefix}.shared_expert_gate.weight", 1, hidden)


def routed_embedding(make: Maker) -> Tensor:
    """Return the embedding with a routing code a token: two experts high, the others low."""
    free = make.hidden - make.reserved

    def row(token: int, old: bytes) -> bytes:
        pick = hashlib.sha256(f"{make.model}/route/{token}".encode()).digest()
        first = pick[0] % EXPERTS
        second = (first + 1 + pick[1] % (EXPERTS - 1)) % EXPERTS
        levels = {first: 2.0, second: 1.25}
        return old[: 2 * free] + b"".join(bf16(levels.get(expert, -1.0)) for expert in range(EXPERTS))

    return with_rows(make.tensors["model.embed_tokens.weight"], row)


def qwen3_next() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return configuration and weights of the hybrid model: Gated DeltaNet, softmax attention, experts."""
    hidden, heads, kv_heads, size, width = 128, 4, 2, 64, 64
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    k_heads, v_heads, gdn_size, kernel = 4, 8, 128, 4
    make = Maker("qwen3-next", hidden, reserved=EXPERTS)
    make.ends(0.0)
    make.tensors["model.embed_tokens.weight"] = routed_embedding(make)
    # The last dimensions are read by the router alone: not scaled, so the code keeps its margin.
    for layer, kind in enumerate(kinds):
        prefix = f"model.layers.{layer}"
        make.vector(f"{prefix}.input_layernorm.weight", hidden, 0.0)
        make.vector(f"{prefix}.post_attention_layernorm.weight", hidden, 0.0)
        if kind == "full_attention":
            attention(make, f"{prefix}.self_attn", heads=heads, kv_heads=kv_heads, size=size, norm_mean=0.0, gated=True)
        else:
            delta_net(make, f"{prefix}.linear_attn", k_heads=k_heads, v_heads=v_heads, size=gdn_size, kernel=kernel)
        experts(make, f"{prefix}.mlp", width)
    config = common_config() | {
        "architectures": ["Qwen3NextForCausalLM"],
        "decoder_sparse_step": 1,
        "full_attention_interval": len(kinds),
        "head_dim": size,
        "hidden_size": hidden,
        "intermediate_size": 2 * width,
        "layer_types": kinds,
        "linear_conv_kernel_dim": kernel,
        "linear_key_head_dim": gdn_size,
        "linear_num_key_heads": k_heads,
        "linear_num_value_heads": v_heads,
        "linear_value_head_dim": gdn_size,
        "mlp_only_layers": [],
        "model_type": "qwen3_next",
        "moe_intermediate_size": width,
        "norm_topk_prob": True,
        "num_attention_heads": heads,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "num_hidden_layers": len(kinds),
        "num_key_value_heads": kv_heads,
        "output_router_logits": False,
        "partial_rotary_factor": 0.25,
        "router_aux_loss_coef": 0.0,
        "shared_expert_intermediate_size": width,
    }
    return config, make.tensors


RECIPES: Mapping[str, Callable[[], tuple[dict[str, Any], dict[str, Tensor]]]] = {
    "qwen3": qwen3,
    "qwen3-next": qwen3_next,
}
"""Every model by name."""


def folder_sha256(folder: Path) -> str:
    """Return one SHA-256 over a model's files: names and bytes, in order of name."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def write_model(name: str, folder: Path) -> str:
    """Write a model into a new folder, readable by every user, and return its SHA-256."""
    config, tensors = RECIPES[name]()
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write_json(scratch / "config.json", config)
        write_json(scratch / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
        write_tokenizer(scratch, CONTEXT)
        write_safetensors(scratch / "model.safetensors", tensors)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder_sha256(folder)
