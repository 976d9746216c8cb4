"""Proof of gdn-one-token-prompt: red on the pristine tree, green on the patched one.

Runs in an environment that holds torch and the vLLM under test (a CPU build), with the tree first on the path:

    PYTHONPATH=TREE python -m pytest patches/gdn-one-token-prompt/test_gdn_one_token_prompt.py

No weights, no network, no server: the real builder splits the batch, and the real CPU path of the layer (convolution
and recurrence) works on slots that hold what an earlier request left. AMX is stood in for by the one function that
vLLM asks, so that the convolution's weights need no packing; what is proven is where a row starts from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata, GDNAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import MambaSpec

HEADS = 2
WIDTH = 64
"""Head width: the kernels are compiled for 64 and its multiples."""
CONV = 4
CHANNELS = 3 * HEADS * WIDTH
SLOTS = 6

MODEL = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
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
    "linear_conv_kernel_dim": CONV,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
MODES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "speculative": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
}


@dataclass(frozen=True)
class Row:
    """A request in a batch: tokens computed before, tokens in this step, length of its prompt, its slot."""

    before: int
    now: int
    prompt: int
    slot: int


FRESH = Row(before=0, now=1, prompt=1, slot=3)
CUT = Row(before=0, now=1, prompt=9, slot=4)
LAST_CHUNK = Row(before=8, now=1, prompt=9, slot=2)
DECODE = Row(before=12, now=1, prompt=9, slot=1)


PLAIN_CACHE = pytest.mark.parametrize("builder", ["defaults"], indirect=True)
"""Without speculation: the cache of the convolution that the tests of the layer's own path are made for."""


@pytest.fixture(params=MODES)
def builder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the builder of a model of which only config.json exists."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    options = {"skip_tokenizer_init": True, "max_model_len": 256, "mamba_ssm_cache_dtype": "float32"}
    config = EngineArgs(model=str(tmp_path), **options, **MODES[request.param]).create_engine_config()
    spec = MambaSpec(
        block_size=256,
        shapes=((CONV - 1, CHANNELS), (HEADS, WIDTH, WIDTH)),
        dtypes=(torch.bfloat16, torch.float32),
        num_speculative_blocks=config.num_speculative_tokens,
    )
    with set_current_vllm_config(config):
        yield GDNAttentionMetadataBuilder(spec, ["layer"], config, torch.device("cpu"))


def build(builder: Any, *rows: Row) -> GDNAttentionMetadata:
    """Return what the builder makes of a batch, described as the model runner does."""
    starts = torch.tensor([0, *(row.now for row in rows)]).cumsum(0).int()
    lengths = torch.tensor([row.before + row.now for row in rows], dtype=torch.int32)
    table = torch.zeros((len(rows), 1 + builder.num_spec), dtype=torch.int32)
    table[:, 0] = torch.tensor([row.slot for row in rows])
    tokens = int(starts[-1])
    batch = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(rows),
        num_actual_tokens=tokens,
        max_query_len=max(row.now for row in rows),
        max_seq_len=int(lengths.max()),
        block_table_tensor=table,
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        is_prefilling=torch.tensor([row.before < row.prompt for row in rows]),
    )
    return builder.build(0, batch)


class Layer:
    """A Gated DeltaNet layer: its parameters, and slots that are full of what others left."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.activation = "silu"
        self.conv1d = SimpleNamespace(weight=(torch.randn(CHANNELS, 1, CONV) / 2).bfloat16(), bias=None)
        self.A_log = torch.rand(HEADS)
        self.dt_bias = torch.rand(HEADS).bfloat16()
        self.kv_cache = (torch.randn(SLOTS, CONV - 1, CHANNELS).bfloat16(), torch.randn(SLOTS, HEADS, WIDTH, WIDTH))
        self.inputs = [torch.randn(16, size).bfloat16() for size in (CHANNELS, HEADS, HEADS)]

    def rearrange_mixed_qkv(self, mixed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Split queries, keys and values."""
        return tuple(part.reshape(1, -1, HEADS, WIDTH).contiguous() for part in mixed.chunk(3, dim=-1))

    def run(self, builder: Any, *rows: Row) -> list[torch.Tensor]:
        """Return each row's outputs; every request has the same tokens."""
        picks = torch.cat([torch.arange(row.before, row.before + row.now) for row in rows])
        out = torch.zeros(len(picks), HEADS, WIDTH, dtype=torch.bfloat16)
        mixed, b, a = (part[picks] for part in self.inputs)
        gdn_attention._cpu_gdn_attention_nonspec(self, build(builder, *rows), mixed, b, a, out)
        return [part.float() for part in out.split([row.now for row in rows])]


def prompt(tokens: int, slot: int) -> Row:
    """Return a whole prompt."""
    return Row(before=0, now=tokens, prompt=tokens, slot=slot)


@pytest.mark.parametrize("first", [FRESH, CUT], ids=["prompt of one token", "prompt cut after one token"])
@pytest.mark.parametrize(
    "others",
    [(), (DECODE,), (DECODE, LAST_CHUNK), (LAST_CHUNK,)],
    ids=["alone", "after a decode", "after a decode and a last chunk", "after a last chunk"],
)
def test_first_token_is_a_prefill_without_a_state(builder: Any, others: tuple[Row, ...], first: Row) -> None:
    """Count it as a prefill whose initial state is not to be read."""
    made = build(builder, *others, first)
    assert made.num_prefills >= 1
    assert made.has_initial_state is not None
    assert made.has_initial_state.tolist() == [True] * len(others) + [False]
    assert made.num_decodes + made.num_prefills == len(others) + 1
    assert made.num_decode_tokens + made.num_prefill_tokens == len(others) + 1
    assert made.non_spec_state_indices_tensor.tolist() == [row.slot for row in (*others, first)]


def test_decodes_stay_decodes(builder: Any) -> None:
    """Leave a batch of nothing but decodes to the decode kernels."""
    made = build(builder, DECODE, Row(before=3, now=1, prompt=2, slot=2))
    assert (made.num_decodes, made.num_prefills, made.has_initial_state) == (2, 0, None)


def test_decode_before_a_first_token_stays_a_decode(builder: Any) -> None:
    """Take nothing but the first token out of the decodes."""
    made = build(builder, DECODE, FRESH)
    assert (made.num_decodes, made.num_prefills) == (1, 1)


@PLAIN_CACHE
@pytest.mark.parametrize("first", [FRESH, CUT], ids=["prompt of one token", "prompt cut after one token"])
def test_first_token_starts_from_nothing(builder: Any, first: Row) -> None:
    """Answer as on a slot that nobody had, alone and beside a decode, and leave the same state behind."""
    clean = Layer()
    for cache in clean.kv_cache:
        cache[first.slot] = 0
    wanted = clean.run(builder, first)[0]
    for others in ((), (DECODE,)):
        used = Layer()
        torch.testing.assert_close(used.run(builder, *others, first)[-1], wanted, rtol=0.02, atol=0.01)
        for mine, its in zip(used.kv_cache, clean.kv_cache, strict=True):
            torch.testing.assert_close(mine[first.slot], its[first.slot], rtol=0.02, atol=0.01)


@PLAIN_CACHE
def test_last_chunk_of_one_token_starts_from_its_own_state(builder: Any) -> None:
    """Answer the last token as a prefill in one piece does, whoever else is in the batch."""
    wanted = Layer().run(builder, prompt(9, slot=2))[0][-1:]
    for others in ((), (FRESH,)):
        layer = Layer()
        layer.run(builder, Row(before=0, now=8, prompt=9, slot=2))
        torch.testing.assert_close(layer.run(builder, LAST_CHUNK, *others)[0], wanted, rtol=0.02, atol=0.01)


@PLAIN_CACHE
def test_answer_goes_on_after_a_prompt_of_one_token(builder: Any) -> None:
    """Decode on top of a first token as a prefill of all tokens does."""
    wanted = Layer().run(builder, prompt(3, slot=3))[0]
    layer = Layer()
    given = [layer.run(builder, Row(before=at, now=1, prompt=1, slot=3))[0] for at in range(3)]
    torch.testing.assert_close(torch.cat(given), wanted, rtol=0.02, atol=0.01)
