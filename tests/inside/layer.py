"""The XPU forward of 0.15.1's Gated DeltaNet layer, over the operator's stand-in, held to Hugging Face's layer.

Runs inside the image of the fixed base; forward_xpu is called by name, so that no XPU is needed. Keys and values have
heads of different sizes, and what no sequence has written is not a number. `test_a_mutation_is_seen` breaks the layer
in the ways that the other tests are there for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hf
import pytest
import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.models.qwen3_next import Qwen3NextGatedDeltaNet
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata
from xpukernels import ContractError, registered

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SLOTS, PREFIX, V_DIM = 70, "gdn.0", 64


@dataclass(frozen=True)
class Row:
    """Tokens of a sequence in one step: its number, how many came before, how many come now, and its slot."""

    number: int
    before: int
    now: int
    slot: int


def config_of() -> Any:
    config = hf.make_config()
    config.linear_value_head_dim = V_DIM
    return config


def tokens_of(number: int, count: int) -> torch.Tensor:
    return torch.randn(400, 64, generator=torch.Generator().manual_seed(number))[:count].to(BF16).float()


class Lab:
    """A layer with weights of the reference, and its caches."""

    def __init__(self, folder: Path, dtype: torch.dtype, *, tp: int = 1, **options: Any) -> None:
        self.dtype, self.reference_config = dtype, config_of()
        self.reference = hf.make_layer(self.reference_config, dtype)
        values = self.reference_config.to_dict() | {"architectures": ["Qwen3NextForCausalLM"]}
        values |= {"dtype": str(dtype).removeprefix("torch."), "layer_types": ["linear_attention", "full_attention"]}
        values |= {"num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 512}
        (folder / "config.json").write_text(json.dumps(values, default=str))
        options |= {"skip_tokenizer_init": True, "max_model_len": 512, "enforce_eager": True}
        self.config = EngineArgs(model=str(folder), **options).create_engine_config()
        with set_current_vllm_config(self.config):
            if not torch.distributed.is_initialized():
                init_distributed_environment(1, 0, f"file://{folder}/meet", 0, "gloo")
                initialize_model_parallel()
            self.layer = self._build()
        shapes, dtypes = self.layer.get_state_shape(), self.layer.get_state_dtype()
        self.conv, self.state = (
            torch.full((SLOTS, *shape), torch.nan, dtype=kind) for shape, kind in zip(shapes, dtypes, strict=True)
        )
        self.layer.kv_cache = [(self.conv, self.state)]
        self.tp = tp

    def _build(self) -> Any:
        torch.set_default_dtype(self.dtype)
        try:
            layer = Qwen3NextGatedDeltaNet(
                self.config.model_config.hf_config,
                model_config=self.config.model_config,
                cache_config=self.config.cache_config,
                quant_config=self.config.quant_config,
                prefix=PREFIX,
            )
        finally:
            torch.set_default_dtype(FP32)
        mine = dict(layer.named_parameters())
        for name, tensor in self.reference.state_dict().items():
            loader = getattr(mine[name], "weight_loader", None)
            if loader is None:
                mine[name].data.copy_(tensor)
            else:
                loader(mine[name], tensor)
        for part in layer.modules():
            if hasattr(part, "quant_method"):
                part.quant_method.process_weights_after_loading(part)
        return layer

    def step(self, *rows: Row) -> list[torch.Tensor]:
        """Return each row's outputs; two rows of padding follow, as they do behind a captured graph."""
        given = torch.cat([tokens_of(row.number, row.before + row.now)[row.before :] for row in rows]).to(self.dtype)
        starts = torch.tensor([0, *(row.now for row in rows)]).cumsum(0).int()
        decodes = sum(row.now == 1 for row in rows)
        metadata = GDNAttentionMetadata(
            num_prefills=len(rows) - decodes,
            num_prefill_tokens=len(given) - decodes,
            num_decodes=decodes,
            num_decode_tokens=decodes,
            num_spec_decodes=0,
            num_spec_decode_tokens=0,
            num_actual_tokens=len(given),
            has_initial_state=torch.tensor([row.before > 0 for row in rows]),
            non_spec_query_start_loc=starts,
            non_spec_state_indices_tensor=torch.tensor([row.slot for row in rows], dtype=torch.int32),
        )
        hidden = torch.cat([given, torch.full((2, 64), 7.0, dtype=self.dtype)])
        output = torch.full_like(hidden, torch.nan)
        with (
            torch.inference_mode(),
            set_current_vllm_config(self.config),
            set_forward_context({PREFIX: metadata}, self.config),
        ):
            self.layer.forward_xpu(hidden, output)
        return list(output[: len(given)].split([row.now for row in rows]))

    def check(self, *rows: Row) -> None:
        """Run a step; hold some rows' outputs and states to the reference.

        Granted is twice what the reference in the same dtype is itself off the one in float32, for it rounds at about
        the same places, and the rounding of a state that is kept in 16 bits.
        """
        outputs = self.step(*rows)
        rounded = hf.in_dtype(self.reference, self.dtype)
        for number in {0, len(rows) // 2, len(rows) - 1}:
            row = rows[number]
            prompt = tokens_of(row.number, row.before + row.now)
            with torch.inference_mode():
                wanted, own = (hf.ask(one, self.reference_config, prompt) for one in (self.reference, rounded))
            # One token alone may happen to be rounded well; the whole sequence says what is usual.
            grant = max(2 * hf.error(own.output, wanted.output), 0.006 if self.dtype == BF16 else 0.0008)
            grant += 0 if self.state.dtype == FP32 else 2 * torch.finfo(self.state.dtype).eps
            assert grant < 0.05
            kept = self.state[row.slot].view(-1, V_DIM, 32)
            for what, got, truth in (
                ("output", outputs[number], wanted.output[row.before :]),
                ("conv", self.conv[row.slot], wanted.conv),
                ("state", kept, wanted.state),
            ):
                off = hf.error(got, truth)
                assert off <= grant, f"{what} of {row}: {off:.2e} > {grant:.2e}"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.set_num_threads(1)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with registered("0.1.9", strict=True):
        yield


SIXTEEN = pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)


@SIXTEEN
def test_batches_of_every_size(dtype: torch.dtype, tmp_path: Path) -> None:
    lab = Lab(tmp_path, dtype)
    for count in (1, 2, 64, 65):
        lab.check(*(Row(n, 0, 1 + 5 * n % 7, n + 1) for n in range(count)))
        lab.check(*(Row(n, 1 + 5 * n % 7, 1, n + 1) for n in range(count)))


@pytest.mark.parametrize("state", ["auto", "float16", "float32"])
@SIXTEEN
def test_uneven_prompts_chunks_and_mixtures(dtype: torch.dtype, state: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, dtype, mamba_ssm_cache_dtype=state)
    assert lab.state.dtype == (dtype if state == "auto" else getattr(torch, state))
    lab.check(Row(0, 0, 300, 4), Row(1, 0, 65, 9), Row(2, 0, 1, 2), Row(3, 0, 64, 1), Row(4, 0, 2, 8))
    # A decode, two later chunks, a new prompt, and a prompt in the slot that a longer one has left.
    lab.check(Row(2, 1, 1, 2), Row(1, 65, 70, 9), Row(3, 64, 3, 1), Row(5, 0, 40, 3), Row(6, 0, 2, 4))
    lab.check(Row(2, 2, 1, 2), Row(1, 135, 1, 9), Row(7, 0, 1, 8), Row(6, 2, 1, 4))


@SIXTEEN
@pytest.mark.parametrize("version", ["0.1.7", "0.1.13.1"])
def test_other_versions_of_the_kernels(dtype: torch.dtype, version: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, dtype)
    with registered(version, strict=True):
        lab.check(Row(0, 0, 70, 1), Row(1, 0, 1, 2))
        lab.check(Row(0, 70, 1, 1), Row(1, 1, 1, 2))


def halves(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Let vLLM take this process for one of two ranks."""
    answers = {
        "get_tensor_model_parallel_rank": lambda: rank,
        "get_tensor_model_parallel_world_size": lambda: 2,
        "tensor_model_parallel_all_reduce": lambda tensor: tensor,
    }
    for module in [module for name, module in sys.modules.items() if name.startswith("vllm")]:
        for name, answer in answers.items():
            if name in vars(module):
                monkeypatch.setattr(module, name, answer)


@SIXTEEN
def test_two_ranks_add_up(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(Row(0, 0, 70, 1), Row(1, 0, 9, 2)), (Row(0, 70, 1, 1), Row(1, 9, 1, 2))]
    whole = Lab(tmp_path, dtype)
    alone = [torch.cat(whole.step(*rows)).float() for rows in steps]
    sums = [torch.zeros_like(one) for one in alone]
    states = []
    for rank in range(2):
        halves(monkeypatch, rank)
        half = Lab(tmp_path, dtype, tp=2)
        for total, rows in zip(sums, steps, strict=True):
            total.add_(torch.cat(half.step(*rows)).float())
        states.append(half.state[1])
    # Each rank rounds its half of the sum once.
    for total, one in zip(sums, alone, strict=True):
        assert hf.error(total, one) < 2 * torch.finfo(dtype).eps
    assert torch.equal(torch.cat(states), whole.state[1])


class Fp8(torch.nn.Module):
    """A projection that keeps FP8 and answers in float32: a stand-in, for vLLM's own FP8 method has no CPU kernel."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
        self.kept = (weight / self.scale).to(torch.float8_e4m3fn)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x.float() @ (self.kept.float() * self.scale).t(), None


@SIXTEEN
def test_projections_in_fp8(dtype: torch.dtype, tmp_path: Path) -> None:
    lab = Lab(tmp_path, dtype)
    for name in ("in_proj_qkvz", "in_proj_ba"):
        own = getattr(lab.reference, name)
        stand_in = Fp8(own.weight.detach())
        own.weight.data = stand_in.kept.float() * stand_in.scale
        setattr(lab.layer, name, stand_in)
    lab.check(Row(0, 0, 70, 1), Row(1, 0, 1, 2))
    lab.check(Row(0, 70, 1, 1), Row(1, 1, 1, 2))


def test_fp8_of_vllm_itself_has_no_cpu_kernel(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="dynamic_scaled_fp8_quant"):
        Lab(tmp_path, BF16, quantization="fp8")


def half_buffers(lab: Lab) -> None:
    plain = lab.layer._fused_core_buffers
    lab.layer._fused_core_buffers = lambda hidden: [tensor.half() for tensor in plain(hidden)]


def half_projection(lab: Lab) -> None:
    """Put one projection in float16 behind the layer's own comparison, so that the operator alone can notice."""
    plain = lab.layer._forward_core_fused

    def core(_: Any, out: torch.Tensor, z: torch.Tensor, qkvz: torch.Tensor, ba: torch.Tensor) -> None:
        def call(*given: Any, **named: Any) -> None:
            later = ("spec_query_start_loc", "spec_token_indx", "spec_state_indices_tensor", "num_accepted_tokens")
            named |= dict.fromkeys(later) | {"num_spec_decodes": 0, "non_spec_token_indx": None}
            torch.ops._xpu_C.gdn_attention(*given, **named, reorder_input=False)

        plain(call, out, z, qkvz.half(), ba)

    lab.layer._forward_core_fused = core


def no_reset(lab: Lab) -> None:
    plain = lab.layer._forward_core_fused

    def core(fused: Any, *tensors: Any) -> None:
        def call(*given: Any, **named: Any) -> None:
            fused(*given, **named | {"has_initial_state": torch.ones_like(named["has_initial_state"])})

        plain(call, *tensors)

    lab.layer._forward_core_fused = core


def swapped_gates(lab: Lab) -> None:
    plain = lab.layer._fused_core_buffers

    def buffers(hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *others, ba = plain(hidden)
        return (*others, ba.unflatten(1, (-1, 2, 4)).flip(2).flatten(1))

    lab.layer._fused_core_buffers = buffers


def half_state(lab: Lab) -> None:
    lab.layer.kv_cache = [(lab.conv, lab.state.to(torch.float8_e4m3fn))]


MUTATIONS = {
    "buffers in float16": (half_buffers, TypeError, "needs one dtype"),
    "one projection in float16": (half_projection, ContractError, "projected_states_qkvz"),
    "no reset of a reused slot": (no_reset, AssertionError, None),
    "b and a swapped": (swapped_gates, AssertionError, " > "),
    "a state of 8 bits": (half_state, RuntimeError, "ssm_state dtype must be"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_seen(name: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, BF16)
    mutate, error, message = MUTATIONS[name]
    mutate(lab)
    with pytest.raises(error, match=message):
        lab.check(Row(0, 0, 20, 1), Row(1, 0, 3, 2))
