"""Proof of gdn-fused-path: red on the pristine tree, green on the patched one.

Runs in an environment that holds torch, transformers and the vLLM under test (a CPU build), with the tree first on the
path:

    PYTHONPATH=TREE python -m pytest patches/gdn-fused-path/test_gdn_fused_path.py

No weights, no network, no server: the real layer with random weights, its real loaders and its real metadata builder
go through batches step by step. The reference is Hugging Face's layer in float32, which sees every sequence at once
and from nothing. Slots hold what is not a number until a sequence has written to them.

With the test library of the fused XPU operator on the path (`xpukernels`), the forward for XPU goes the same way.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDynamicCache
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet as Reference
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.layernorm import RMSNormGated
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM, Qwen3NextGatedDeltaNet
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import MambaSpec

xpukernels: Any = None
with contextlib.suppress(ImportError):
    import xpukernels
PATHS = ["cpu", "xpu"] if xpukernels else ["cpu"]

HIDDEN, K_HEADS, V_HEADS, SIZE, WIDTH, TOKENS, SLOTS = 64, 4, 8, 64, 4, 320, 80
MODEL = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": K_HEADS,
    "linear_num_value_heads": V_HEADS,
    "linear_key_head_dim": SIZE,
    "linear_value_head_dim": SIZE,
    "linear_conv_kernel_dim": WIDTH,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
CLOSE = {torch.float32: 1e-5, torch.float16: 1.5e-2, torch.bfloat16: 5e-2}
"""Largest relative error by dtype of activations or state, whichever is coarser."""


@dataclass(frozen=True)
class Row:
    """A sequence in a batch: tokens computed before, tokens in this step; sequence n lives in slot n + 1."""

    sequence: int
    before: int
    now: int


def weights() -> dict[str, torch.Tensor]:
    """Return the checkpoint of one layer, in bfloat16 as they are kept."""
    torch.manual_seed(0)
    keys, values = K_HEADS * SIZE, V_HEADS * SIZE
    made = {
        "in_proj_qkvz.weight": torch.randn(2 * keys + 2 * values, HIDDEN) / HIDDEN**0.5,
        "in_proj_ba.weight": torch.randn(2 * V_HEADS, HIDDEN) / HIDDEN**0.5,
        "conv1d.weight": torch.randn(2 * keys + values, 1, WIDTH) / 2,
        "dt_bias": torch.rand(V_HEADS),
        "A_log": torch.rand(V_HEADS) * 2 - 3,
        "norm.weight": torch.rand(SIZE) + 0.5,
        "out_proj.weight": torch.randn(HIDDEN, values) / values**0.5,
    }
    return {name: tensor.bfloat16() for name, tensor in made.items()}


class Bench:
    """The layer with its caches, and inputs of as many sequences as there are slots."""

    def __init__(self, folder: Path, dtype: torch.dtype, path: str = "cpu", **options: Any) -> None:
        (folder / "config.json").write_text(json.dumps(MODEL | {"dtype": str(dtype).removeprefix("torch.")}))
        base = {"skip_tokenizer_init": True, "max_model_len": 512, "enforce_eager": True}
        self.config = EngineArgs(model=str(folder), **base | options).create_engine_config()
        self.dtype, self.path = dtype, path
        self.inputs = inputs(dtype)
        with set_current_vllm_config(self.config):
            if not torch.distributed.is_initialized():
                init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
                initialize_model_parallel()
            self.layer = self.make_layer()
            shapes, dtypes = self.layer.get_state_shape(), self.layer.get_state_dtype()
            spec = MambaSpec(block_size=512, shapes=shapes, dtypes=dtypes)
            self.builder = GDNAttentionMetadataBuilder(spec, ["gdn"], self.config, torch.device("cpu"))
        # Slots are pages: what follows in one of them belongs to another cache.
        pages = [
            torch.full((SLOTS, 2, *shape), torch.nan, dtype=kind) for shape, kind in zip(shapes, dtypes, strict=True)
        ]
        self.conv_state, self.ssm_state = (page[:, 0] for page in pages)
        self.layer.kv_cache = [(self.conv_state, self.ssm_state)]
        self.limit = max(CLOSE[kind] for kind in (dtype, *dtypes))

    def make_layer(self) -> Any:
        """Return the layer, its weights loaded and prepared as the model loader does it."""
        config = self.config
        previous = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            layer = Qwen3NextGatedDeltaNet(
                config.model_config.hf_config,
                model_config=config.model_config,
                cache_config=config.cache_config,
                prefix="gdn.0",
            )
        finally:
            torch.set_default_dtype(previous)
        parameters = dict(layer.named_parameters())
        for name, tensor in weights().items():
            load = getattr(parameters[name], "weight_loader", lambda own, given: own.data.copy_(given))
            load(parameters[name], tensor)
        for part in layer.modules():
            if hasattr(part, "quant_method"):
                part.quant_method.process_weights_after_loading(part)
        return layer

    def metadata(self, rows: Sequence[Row]) -> Any:
        """Return what the builder makes of a batch, described as the model runner does."""
        starts = torch.tensor([0, *(row.now for row in rows)]).cumsum(0).int()
        lengths = torch.tensor([row.before + row.now for row in rows], dtype=torch.int32)
        table = torch.tensor([[row.sequence + 1, 0] for row in rows], dtype=torch.int32)
        batch = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=lengths,
            num_reqs=len(rows),
            num_actual_tokens=int(starts[-1]),
            max_query_len=max(row.now for row in rows),
            max_seq_len=int(lengths.max()),
            block_table_tensor=table,
            slot_mapping=torch.zeros(int(starts[-1]), dtype=torch.int64),
        )
        return self.builder.build(0, batch)

    def step(self, *rows: Row) -> list[torch.Tensor]:
        """Return each row's outputs; decodes stand first, as the runner orders them. Three more tokens are padding."""
        tokens = [self.inputs[row.sequence, row.before : row.before + row.now] for row in rows]
        hidden = torch.cat([*tokens, torch.ones(3, HIDDEN, dtype=self.dtype)])
        output = torch.full_like(hidden, torch.nan)
        with (
            torch.no_grad(),
            set_current_vllm_config(self.config),
            set_forward_context({"gdn.0": self.metadata(rows)}, self.config),
        ):
            if self.path == "xpu":
                with xpukernels.registered(strict=True):
                    self.layer.forward_xpu(hidden, output)
            else:
                self.layer(hidden, output)
        assert output.dtype == self.dtype
        return list(output[: len(hidden) - 3].split([row.now for row in rows]))

    def check(self, *rows: Row) -> None:
        """Run a step, and compare each row's outputs and the states of three with the reference."""
        for row, mine in zip(rows, self.step(*rows), strict=True):
            end = row.before + row.now
            wanted, _, _ = reference(self.dtype, row.sequence, -(-end // 32) * 32)
            close(mine, wanted[row.before : end], self.limit)
        for row in {rows[0], rows[len(rows) // 2], rows[-1]}:
            end, slot = row.before + row.now, row.sequence + 1
            _, conv, state = reference(self.dtype, row.sequence, end)
            close(self.conv_state[slot], conv.T[1:], self.limit)
            view = self.ssm_state[slot].view(V_HEADS, SIZE, SIZE)
            close(view, state.transpose(-1, -2), self.limit)


@lru_cache
def inputs(dtype: torch.dtype) -> torch.Tensor:
    """Return what every sequence consists of, [sequences, tokens, hidden]."""
    return torch.randn(SLOTS - 1, TOKENS, HIDDEN, generator=torch.manual_seed(1)).to(dtype)


@lru_cache
def reference_layer() -> Any:
    """Return Hugging Face's layer in float32."""
    layer = Reference(Qwen3NextConfig(**MODEL), 0).float()
    layer.load_state_dict({name: tensor.float() for name, tensor in weights().items()})
    return layer


@cache
def reference(dtype: torch.dtype, sequence: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the reference's outputs [tokens, hidden] and states after the first tokens of a sequence."""
    tokens, states = inputs(dtype)[sequence, :end].float(), Qwen3NextDynamicCache(Qwen3NextConfig(**MODEL))
    with torch.no_grad():
        out = reference_layer()(tokens[None], cache_params=states, cache_position=torch.arange(end))
    return out[0], states.conv_states[0][0], states.recurrent_states[0][0]


def close(mine: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    """Demand a relative error below a limit; what is not a number is never close."""
    assert mine.shape == wanted.shape
    error = ((mine.float() - wanted).norm() / wanted.norm()).item()
    assert error < limit, f"relative error {error}, limit {limit}"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


DTYPES = pytest.mark.parametrize(
    ("path", "dtype"),
    [
        (path, dtype)
        for path in PATHS
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        if (path, dtype) != ("xpu", torch.float32)  # the fused operator takes 16-bit activations only
    ],
    ids=str,
)
EVERY_PATH = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def bench(path: str, dtype: torch.dtype, tmp_path: Path) -> Bench:
    """Return a layer with empty slots."""
    return Bench(tmp_path, dtype, path)


@DTYPES
@pytest.mark.parametrize("count", [1, 2, 64, 65])
def test_decode_goes_on_from_prefills_of_uneven_length(bench: Bench, count: int) -> None:
    """Answer and leave states as the reference does, from one sequence to more than a batch."""
    lengths = [1 + 7 * n % 23 for n in range(count)]
    bench.check(*(Row(n, 0, length) for n, length in enumerate(lengths)))
    for step in range(2):
        bench.check(*(Row(n, length + step, 1) for n, length in enumerate(lengths)))


@DTYPES
def test_long_prompt_in_one_piece_and_in_chunks(bench: Bench) -> None:
    """Go on from the initial state of a chunk, whatever its length."""
    bench.check(Row(0, 0, 300))
    for before, now in ((0, 130), (130, 1), (131, 2), (133, 64), (197, 103)):
        bench.check(Row(1, before, now))


@DTYPES
def test_decodes_chunks_and_first_tokens_in_one_batch(bench: Bench) -> None:
    """Take every kind of row at once."""
    bench.check(Row(0, 0, 5), Row(1, 0, 40), Row(2, 0, 70))
    bench.check(Row(0, 5, 1), Row(3, 0, 1), Row(1, 40, 1), Row(2, 70, 90), Row(4, 0, 3), Row(5, 0, 17))
    bench.check(*(Row(n, before, 1) for n, before in ((0, 6), (3, 1), (1, 41), (2, 160), (4, 3), (5, 17))))


@DTYPES
@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_slot_of_an_ended_sequence_starts_from_nothing(bench: Bench, length: int) -> None:
    """Read nothing of what a slot's last sequence left."""
    bench.check(Row(0, 0, 50), Row(1, 0, 9))
    bench.check(Row(1, 9, 1), Row(0, 0, length))
    bench.check(Row(0, length, 1), Row(1, 10, 1))


@EVERY_PATH
@pytest.mark.parametrize("state", ["float32", "float16", "auto"])
def test_state_has_the_dtype_that_was_asked_for(path: str, state: str, tmp_path: Path) -> None:
    """Allocate and keep the recurrent state in it, and answer rightly."""
    bench = Bench(tmp_path, torch.bfloat16, path, mamba_ssm_cache_dtype=state)
    wanted = (torch.bfloat16, getattr(torch, state, torch.bfloat16))
    assert bench.layer.get_state_dtype() == wanted
    assert Qwen3NextForCausalLM.get_mamba_state_dtype_from_config(bench.config) == wanted
    assert bench.ssm_state.dtype == wanted[1]
    bench.check(Row(0, 0, 100))
    bench.check(Row(0, 100, 1))


class Quantised(torch.nn.Module):
    """A projection whose weight is kept in FP8, and which answers in another dtype than it was asked in."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
        self.kept = (weight / self.scale).to(torch.float8_e4m3fn)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Answer in float32."""
        return x.float() @ (self.kept.float() * self.scale).T, None


@DTYPES
def test_quantised_projections_reach_the_core_in_the_activations_dtype(bench: Bench) -> None:
    """Answer as exact projections do, within what FP8 loses."""
    rows = (Row(0, 0, 1), Row(1, 0, 30))
    exact = bench.step(*rows)
    for name in ("in_proj_qkvz", "in_proj_ba"):
        setattr(bench.layer, name, Quantised(weights()[f"{name}.weight"].float()))
    for mine, plain in zip(bench.step(*rows), exact, strict=True):
        close(mine, plain.float(), 0.1)


@DTYPES
def test_two_workers_add_up_to_one(
    path: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shard weights, heads and states over two workers."""
    steps = [(Row(0, 0, 70), Row(1, 0, 9)), (Row(0, 70, 1), Row(1, 9, 1))]
    sums = [torch.zeros(sum(row.now for row in rows), HIDDEN) for rows in steps]
    whole = Bench(tmp_path, dtype, path)
    alone = [torch.cat(whole.step(*rows)).float() for rows in steps]
    for rank in range(2):
        for name, module in list(sys.modules.items()):
            if name.startswith("vllm") and hasattr(module, "get_tensor_model_parallel_rank"):
                monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda rank=rank: rank)
            if name.startswith("vllm") and hasattr(module, "get_tensor_model_parallel_world_size"):
                monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: 2)
            if name.startswith("vllm") and hasattr(module, "tensor_model_parallel_all_reduce"):
                monkeypatch.setattr(module, "tensor_model_parallel_all_reduce", lambda x: x)
        half = Bench(tmp_path, dtype, path)
        assert half.layer.get_state_shape()[1][0] == V_HEADS // 2
        for total, rows in zip(sums, steps, strict=True):
            total.add_(torch.cat(half.step(*rows)).float())
    for total, one in zip(sums, alone, strict=True):
        close(total, one, whole.limit)


@pytest.mark.parametrize("group", [None, 32], ids=["whole", "groups"])
def test_gated_norm_does_not_overflow_in_float16(group: int | None, tmp_path: Path) -> None:
    """Square what float16 cannot hold."""
    bench = Bench(tmp_path, torch.float16)
    with set_current_vllm_config(bench.config):
        norm = RMSNormGated(64, eps=1e-6, group_size=group, norm_before_gate=True, dtype=torch.float16)
    x, z = 1000 * torch.randn(5, 64), torch.randn(5, 64)
    wide = x.unflatten(-1, (-1, group or 64))
    wanted = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).flatten(1) * torch.nn.functional.silu(z)
    made = norm(x.half(), z.half())
    assert made.dtype == torch.float16
    close(made, wanted, 2e-3)


def test_weight_of_a_convolution_is_left_alone(tmp_path: Path) -> None:
    """Keep its three dimensions and its values."""
    layer = Bench(tmp_path, torch.bfloat16).layer
    assert torch.equal(layer.conv1d.weight.data, weights()["conv1d.weight"])


@EVERY_PATH
def test_profile_run_without_metadata_leaves_the_caches_alone(path: str, tmp_path: Path) -> None:
    """Run as the memory profile does."""
    bench = Bench(tmp_path, torch.bfloat16, path)
    hidden = torch.ones(8, HIDDEN, dtype=torch.bfloat16)
    output = torch.empty_like(hidden)
    with torch.no_grad(), set_current_vllm_config(bench.config), set_forward_context(None, bench.config):
        getattr(bench.layer, f"forward_{path}")(hidden, output)
    assert output.isfinite().all()
    assert bench.ssm_state.isnan().all() and bench.conv_state.isnan().all()


@pytest.fixture
def prefix_caching(tmp_path: Path) -> Iterator[Any]:
    """Return a configuration that asks for prefix caching."""
    yield Bench(tmp_path, torch.bfloat16, enable_prefix_caching=True).config


def test_prefix_caching_is_refused_at_start(prefix_caching: Any) -> None:
    """Say which flag works."""
    with set_current_vllm_config(prefix_caching), pytest.raises(NotImplementedError, match="no-enable-prefix-caching"):
        Qwen3NextForCausalLM(vllm_config=prefix_caching)


def test_speculative_decoding_is_refused_at_start(tmp_path: Path) -> None:
    """Refuse it before a request is there."""
    bench = Bench(tmp_path, torch.bfloat16)
    config = bench.config.model_config
    with set_current_vllm_config(bench.config), pytest.raises(NotImplementedError, match="Speculative"):
        Qwen3NextGatedDeltaNet(
            config.hf_config,
            model_config=config,
            cache_config=bench.config.cache_config,
            speculative_config=SimpleNamespace(num_speculative_tokens=2),
            prefix="gdn.1",
        )
