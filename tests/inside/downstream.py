"""The layer in the downstream shape, before and after the repair, over the operator that its image builds.

Runs inside an image; before.py and after.py lie beside it. What is not repaired dies in bfloat16 in each of the three
forward methods; what is repaired answers as Hugging Face's layer does, and in float16 bit for bit as before.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hf
import pytest
import torch
from xpukernels import ContractError, fused, registered

BF16, FP16 = torch.bfloat16, torch.float16
SLOTS = 80
CRASH = (
    r"dt_bias dtype must match core_attn_out dtype \(float16/bfloat16\), "
    r"but got dt_bias=BFloat16, core_attn_out=Half"
)


@dataclass(frozen=True)
class Case:
    """A forward method, and how many sequences of how many tokens go through it; decodes come after a prompt."""

    method: str
    sequences: int
    tokens: int = 1
    prompt: int = 0


XPU, ONE, MANY = "forward_xpu", "forward_xpu_with_precomputed_proj", "forward_xpu_batched_precomputed_proj"
# A prompt is longer than the small batch, so that it takes the branch that is right before the repair too.
CASES = {
    "one token": Case(XPU, 1, prompt=70),
    "small prefill": Case(XPU, 1, tokens=5),
    "small decode": Case(XPU, 5, prompt=14),
    "large prefill": Case(XPU, 1, tokens=70),
    "large decode": Case(XPU, 70, prompt=2),
    "projected, one token": Case(ONE, 1, prompt=70),
    "projected, small": Case(MANY, 5, prompt=14),
    "projected, large": Case(MANY, 70, prompt=2),
}
FOLLOWS_ACTIVATIONS = ("large prefill", "large decode")
RED = [name for name in CASES if name not in FOLLOWS_ACTIVATIONS]


class Lab:
    """One layer of a file, its caches, and what goes through it."""

    def __init__(self, file: str, dtype: torch.dtype) -> None:
        spec = importlib.util.spec_from_file_location(file, Path(__file__).parent / f"{file}.py")
        assert spec is not None and spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        torch.manual_seed(3)
        torch.set_default_dtype(dtype)
        try:
            self.layer = self.module.Qwen3NextGatedDeltaNet(self.module.Config(head_k_dim=128, head_v_dim=128))
        finally:
            torch.set_default_dtype(torch.float32)
        self.dtype = dtype
        self.conv = torch.full((SLOTS, 3, self.layer.conv_dim), torch.nan, dtype=dtype)
        self.state = torch.full((SLOTS, 4, 128, 128), torch.nan, dtype=dtype)
        self.layer.kv_cache = [(self.conv, self.state)]

    def step(self, method: str, hidden: torch.Tensor, *, sequences: int, first: bool) -> torch.Tensor:
        """Run tokens [sequences * tokens, hidden] of equally long sequences through a forward method."""
        starts = torch.arange(0, len(hidden) + 1, len(hidden) // sequences, dtype=torch.int32)
        metadata = self.module.Metadata(
            num_prefills=sequences if first else 0,
            num_decodes=0 if first else sequences,
            num_actual_tokens=len(hidden),
            has_initial_state=torch.full((sequences,), not first),
            non_spec_query_start_loc=starts,
            non_spec_state_indices_tensor=torch.arange(2, 2 + sequences, dtype=torch.int32),
        )
        self.module.get_forward_context().attn_metadata = {"layer": metadata}
        output = torch.full_like(hidden, torch.nan)
        given = [hidden]
        if method != XPU:
            given = [self.layer.in_proj_qkvz(hidden)[0], self.layer.in_proj_ba(hidden)[0]]
        getattr(self.layer, method)(*given, output)
        return output

    def run(self, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a case's inputs [sequences, prompt + tokens, hidden] and outputs [sequences, tokens, hidden]."""
        generator = torch.Generator().manual_seed(case.sequences)
        shape = (case.sequences, case.prompt + case.tokens, 64)
        inputs = torch.randn(shape, generator=generator).to(self.dtype)
        if case.prompt:
            self.step(XPU, inputs[:, : case.prompt].flatten(0, 1), sequences=case.sequences, first=True)
        fused.calls.clear()
        now = inputs[:, case.prompt :].flatten(0, 1).contiguous()
        output = self.step(case.method, now, sequences=case.sequences, first=not case.prompt)
        return inputs, output.unflatten(0, (case.sequences, -1))

    def reference(self) -> tuple[Any, Any]:
        """Return Hugging Face's layer with the same weights, and its config."""
        config = hf.make_config(k_heads=2, v_heads=4, head_dim=128)
        layer = hf.make_layer(config, self.dtype)
        mine = self.layer
        with torch.no_grad():
            for name in ("in_proj_qkvz", "in_proj_ba", "out_proj"):
                own = getattr(mine, name)
                getattr(layer, name).weight.copy_(own.weight.float() * own.weight_scale)
            layer.conv1d.weight.copy_(mine.conv1d.weight.float())
            layer.norm.weight.copy_(mine.norm.weight)
            layer.A_log.copy_(mine.A_log.float())
            layer.dt_bias.copy_(mine.dt_bias.float())
        return layer, config


def off_the_reference(lab: Lab, case: Case, inputs: torch.Tensor, outputs: torch.Tensor) -> tuple[float, float]:
    """Return how far outputs and states are off, as shares of what the reference itself is off in that dtype."""
    layer, config = lab.reference()
    rounded = hf.in_dtype(layer, lab.dtype)
    shares = []
    with torch.inference_mode():
        for number in {0, case.sequences - 1}:
            wanted, own = (hf.ask(one, config, inputs[number].float()) for one in (layer, rounded))
            tail = slice(case.prompt, None)
            shares.append(
                (
                    hf.error(outputs[number], wanted.output[tail]) / hf.error(own.output[tail], wanted.output[tail]),
                    # A kept state is rounded once more a step.
                    hf.error(lab.state[2 + number], wanted.state)
                    / (hf.error(own.state, wanted.state) + torch.finfo(lab.dtype).eps),
                )
            )
    return max(share[0] for share in shares), max(share[1] for share in shares)


@pytest.fixture(autouse=True)
def small_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_DECODE_BSZ", "64")


@pytest.mark.parametrize("name", RED)
def test_before_the_repair_bfloat16_dies(name: str) -> None:
    with torch.inference_mode(), registered("0.1.7", strict=False):
        with pytest.raises(RuntimeError, match=CRASH) as caught:
            Lab("before", BF16).run(CASES[name])
        assert not isinstance(caught.value, ContractError)


@pytest.mark.parametrize("name", FOLLOWS_ACTIVATIONS)
def test_before_the_repair_a_large_batch_lives(name: str) -> None:
    with torch.inference_mode(), registered("0.1.7", strict=True):
        lab = Lab("before", BF16)
        assert max(off_the_reference(lab, CASES[name], *lab.run(CASES[name]))) < 2


def test_before_the_repair_the_first_request_dies_behind_fused_calls() -> None:
    with torch.inference_mode(), registered("0.1.7", strict=False, with_fused=True):
        with pytest.raises(RuntimeError, match=CRASH):
            Lab("before", BF16).run(CASES["small prefill"])
        assert fused.calls == {"esimd_gemm_fp8_pert": 2}


@pytest.mark.parametrize("name", ["one token", "small decode", "projected, one token", "projected, small"])
def test_before_the_repair_fused_calls_read_bfloat16_as_float16(name: str) -> None:
    with torch.inference_mode():
        with registered("0.1.7", strict=True, with_fused=True), pytest.raises(ContractError, match="as float16"):
            Lab("before", BF16).run(CASES[name])
        with registered("0.1.7", strict=False, with_fused=True):
            lab = Lab("before", BF16)
            _, outputs = lab.run(CASES[name])
        with registered("0.1.7", strict=True):
            _, wanted = Lab("after", BF16).run(CASES[name])
    off = (outputs.float() - wanted.float()).norm() / wanted.float().norm()
    assert not off < 0.5, f"the wrong bits went unnoticed: {off}"


@pytest.mark.parametrize("with_fused", [False, True], ids=["without-fused", "with-fused"])
@pytest.mark.parametrize("name", CASES)
def test_after_the_repair_bfloat16_is_right(name: str, with_fused: bool) -> None:
    with torch.inference_mode(), registered("0.1.7", strict=True, with_fused=with_fused):
        lab = Lab("after", BF16)
        assert lab.module.HAS_ESIMD is with_fused
        inputs, outputs = lab.run(CASES[name])
        assert fused.calls == {}
        assert outputs.dtype == BF16
        assert max(off_the_reference(lab, CASES[name], inputs, outputs)) < 2


@pytest.mark.parametrize("with_fused", [False, True], ids=["without-fused", "with-fused"])
@pytest.mark.parametrize("name", CASES)
def test_after_the_repair_float16_is_what_it_was(name: str, with_fused: bool) -> None:
    with torch.inference_mode(), registered("0.1.7", strict=True, with_fused=with_fused):
        before, after = Lab("before", FP16), Lab("after", FP16)
        inputs, old = before.run(CASES[name])
        reached = dict(fused.calls)
        _, new = after.run(CASES[name])
        assert torch.equal(old, new)
        assert torch.equal(before.state.view(torch.int16), after.state.view(torch.int16))
        assert torch.equal(before.conv.view(torch.int16), after.conv.view(torch.int16))
        assert fused.calls == reached
        assert bool(reached) is (with_fused and name != "large prefill")
        assert max(off_the_reference(after, CASES[name], inputs, new)) < 2


def test_after_the_repair_a_buffer_of_another_dtype_is_named() -> None:
    with torch.inference_mode(), registered("0.1.7", strict=False):
        lab = Lab("after", BF16)
        lab.layer._m_qkvz = lab.layer._m_qkvz.half()
        with pytest.raises(RuntimeError, match=r"projected_states_qkvz torch\.float16.*dt_bias torch\.bfloat16"):
            lab.run(CASES["small prefill"])
