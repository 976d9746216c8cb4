"""The operator's stand-in, checked against Hugging Face's layer and held to the contract. Runs inside an image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hf
import pytest
import torch
from xpukernels import ContractError, registered

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SLOTS = 12
UNEVEN = [1, 300, 2, 65, 64, 7]


@pytest.fixture(autouse=True)
def operator() -> Iterator[None]:
    with torch.inference_mode(), registered("0.1.9", strict=True, with_fused=True):
        yield


@dataclass
class Bench:
    """A layer's inputs to the operator, and where it keeps states."""

    layer: Any
    config: Any
    dtype: torch.dtype
    state_dtype: torch.dtype
    reorder: bool = False
    tp: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        c = self.config
        self.k_heads, self.v_heads = c.linear_num_key_heads // self.tp, c.linear_num_value_heads // self.tp
        self.k_dim, self.v_dim = c.linear_key_head_dim, c.linear_value_head_dim
        channels = 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim
        # What another request has left would spoil everything that reads it.
        self.conv = torch.full((SLOTS, hf.WIDTH - 1, channels), torch.nan, dtype=self.dtype)
        self.state = torch.full((SLOTS, self.v_heads, self.v_dim, self.k_dim), torch.nan, dtype=self.state_dtype)

    def mine(self, whole: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """Return this rank's part of something by heads."""
        return whole.chunk(self.tp, dim=dim)[self.rank].contiguous()

    def channels(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's channels of something by channels: of q, of k, of v."""
        keys = self.config.linear_num_key_heads * self.k_dim
        parts = whole.split([keys, keys, whole.size(0) - 2 * keys])
        return torch.cat([self.mine(part) for part in parts]).contiguous()

    def project(self, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return qkvz and ba of this rank, sorted by key head or by kind."""
        qkvz = (prompts @ self.layer.in_proj_qkvz.weight.t()).to(self.dtype)
        ba = (prompts @ self.layer.in_proj_ba.weight.t()).to(self.dtype)
        qkvz, ba = self.mine(qkvz, 1), self.mine(ba, 1)
        if self.reorder:
            group = self.v_heads // self.k_heads
            sizes = [self.k_dim, self.k_dim, group * self.v_dim, group * self.v_dim]
            kinds = qkvz.unflatten(1, (self.k_heads, -1)).split(sizes, dim=2)
            qkvz = torch.cat([kind.flatten(1) for kind in kinds], dim=1)
            ba = torch.cat([kind.flatten(1) for kind in ba.unflatten(1, (self.k_heads, -1)).chunk(2, dim=2)], dim=1)
        return qkvz, ba

    def arguments(self, prompts: list[torch.Tensor], slots: list[int], initial: list[bool]) -> dict[str, Any]:
        """Return the arguments for a batch without speculative decodes."""
        qkvz, ba = self.project(torch.cat(prompts))
        starts = torch.tensor([0, *(len(prompt) for prompt in prompts)]).cumsum(0)
        shape = (qkvz.size(0), self.v_heads, self.v_dim)
        # The chunked kernel, which runs where there is a prefill, has no float32; the other takes any lengths.
        prefills = 0 if self.dtype == FP32 else sum(len(prompt) > 1 for prompt in prompts)
        return {
            "core_attn_out": torch.full(shape, torch.nan, dtype=self.dtype),
            "z": torch.full(shape, torch.nan, dtype=self.dtype),
            "projected_states_qkvz": qkvz,
            "projected_states_ba": ba,
            "num_k_heads": self.config.linear_num_key_heads,
            "num_v_heads": self.config.linear_num_value_heads,
            "head_k_dim": self.k_dim,
            "head_v_dim": self.v_dim,
            "conv_state": self.conv,
            "ssm_state": self.state,
            "conv_weights": self.channels(self.layer.conv1d.weight.squeeze(1)).to(self.dtype),
            "conv_bias": None,
            "activation": "silu",
            "A_log": self.mine(self.layer.A_log.float()),
            "dt_bias": self.mine(self.layer.dt_bias).to(self.dtype),
            "num_prefills": prefills,
            "num_decodes": len(prompts) - prefills,
            "num_spec_decodes": 0,
            "has_initial_state": torch.tensor(initial),
            "non_spec_query_start_loc": starts.int(),
            "non_spec_token_indx": None,
            "non_spec_state_indices_tensor": torch.tensor(slots, dtype=torch.int32),
            "spec_query_start_loc": None,
            "spec_token_indx": None,
            "spec_state_indices_tensor": None,
            "num_accepted_tokens": None,
            "num_actual_tokens": qkvz.size(0),
            "tp_size": self.tp,
            "reorder_input": self.reorder,
        }


def bench(dtype: torch.dtype, state_dtype: torch.dtype | None = None, **options: Any) -> Bench:
    config = hf.make_config()
    return Bench(hf.make_layer(config, dtype), config, dtype, state_dtype or dtype, **options)


def call(arguments: dict[str, Any]) -> None:
    torch.ops._xpu_C.gdn_attention(**arguments)


def prompts_of(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randn(length, 64, generator=generator).to(BF16).float() for length in lengths]


def compare(b: Bench, prompts: list[torch.Tensor], arguments: dict[str, Any], at_most: float | None = None) -> None:
    """Hold outputs and states of a batch of whole sequences to the reference's.

    In float32 nothing but the order of additions differs: 1e-4. In 16 bits the reference, which rounds at the same
    places and more, is itself off by some tenths of a percent; twice its own distance is granted, and the rounding of
    a kept state (2**-9 for bfloat16) on top of that of states.
    """
    starts = arguments["non_spec_query_start_loc"].tolist()
    slots = arguments["non_spec_state_indices_tensor"].tolist()
    rounded = hf.in_dtype(b.layer, b.dtype)
    for number, prompt in enumerate(prompts):
        rows = slice(starts[number], starts[number + 1])
        wanted, own = hf.ask(b.layer, b.config, prompt), hf.ask(rounded, b.config, prompt)
        if b.dtype == FP32:
            grant = {"core": 1e-4, "z": 1e-4, "conv": 1e-4, "state": 1e-4}
        else:
            grant = {
                name: 2 * hf.error(getattr(own, name), getattr(wanted, name)) for name in ("core", "z", "conv", "state")
            }
        grant["state"] += 0 if b.state_dtype == FP32 else torch.finfo(b.state_dtype).eps
        got = {
            "core": arguments["core_attn_out"][rows],
            "z": arguments["z"][rows],
            "conv": b.conv[slots[number]],
            "state": b.state[slots[number]],
        }
        for name, tensor in got.items():
            whole = getattr(wanted, name)
            if name == "conv":
                part = b.channels(whole.t().contiguous()).t()
            else:
                part = b.mine(whole, 0 if name == "state" else 1)
            off = hf.error(tensor, part)
            assert off <= grant[name], f"{name} of prompt {number}: {off:.2e} > {grant[name]:.2e}"
            assert grant[name] < 0.05


@pytest.mark.parametrize("reorder", [False, True], ids=["by-head", "by-kind"])
@pytest.mark.parametrize("lengths", [[1], [2], [64], [65], UNEVEN], ids=str)
def test_float32_is_the_reference_up_to_the_order_of_additions(lengths: list[int], reorder: bool) -> None:
    b, prompts = bench(FP32, reorder=reorder), prompts_of(lengths)
    arguments = b.arguments(prompts, [7, 3, 9, 1, 0, 5][: len(lengths)], [False] * len(lengths))
    call(arguments)
    compare(b, prompts, arguments)


@pytest.mark.parametrize("state_dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_sixteen_bits_are_no_further_off_than_the_reference(dtype: torch.dtype, state_dtype: torch.dtype) -> None:
    b, prompts = bench(dtype, state_dtype), prompts_of(UNEVEN)
    arguments = b.arguments(prompts, [7, 3, 9, 1, 0, 5], [False] * len(UNEVEN))
    call(arguments)
    compare(b, prompts, arguments)


def test_other_slots_stay_as_they_are() -> None:
    b, prompts = bench(BF16), prompts_of([3, 1])
    b.conv.normal_()
    b.state.normal_()
    before = b.conv.clone(), b.state.clone()
    call(b.arguments(prompts, [4, 8], [False, True]))
    for slot in set(range(SLOTS)) - {4, 8}:
        assert torch.equal(b.conv[slot], before[0][slot])
        assert torch.equal(b.state[slot], before[1][slot])
    assert not torch.equal(b.state[8], before[1][8])


@pytest.mark.parametrize("cuts", [[1], [2], [63, 64], [64], [64, 65, 200]], ids=str)
def test_a_sequence_in_pieces_is_the_sequence(cuts: list[int]) -> None:
    b = bench(FP32)
    prompt = prompts_of([230])[0]
    pieces = [prompt[start:end] for start, end in zip([0, *cuts], [*cuts, len(prompt)], strict=True)]
    outputs = []
    for number, piece in enumerate(pieces):
        arguments = b.arguments([piece], [6], [number > 0])
        call(arguments)
        outputs.append((arguments["core_attn_out"], arguments["z"]))
    arguments["core_attn_out"], arguments["z"] = (torch.cat(part) for part in zip(*outputs, strict=True))
    arguments["non_spec_query_start_loc"] = torch.tensor([0, len(prompt)])
    compare(b, [prompt], arguments)


def test_prefill_beside_decode() -> None:
    b = bench(BF16, FP32)
    prompts = prompts_of([90, 20])
    call(b.arguments([prompts[0][:-1]], [2], [False]))
    arguments = b.arguments([prompts[0][-1:], prompts[1]], [2, 3], [True, False])
    assert (arguments["num_prefills"], arguments["num_decodes"]) == (1, 1)
    call(arguments)
    wanted = hf.ask(b.layer, b.config, prompts[0])
    assert hf.error(arguments["core_attn_out"][0], wanted.core[-1]) < 0.02
    assert hf.error(b.state[2], wanted.state) < 0.02


def test_two_ranks_hold_the_halves() -> None:
    prompts = prompts_of([65, 1, 20])
    for rank in (0, 1):
        b = bench(FP32, tp=2, rank=rank)
        arguments = b.arguments(prompts, [1, 2, 3], [False] * 3)
        call(arguments)
        compare(b, prompts, arguments)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-a-prefill"])
def test_speculative_decodes_keep_every_state(beside: bool) -> None:
    b = bench(FP32)
    prompt, other = prompts_of([13, 9])
    # Ten tokens are known; the next step proposed two more of which one was accepted; now three come after that one.
    call(b.arguments([prompt[:11]], [2], [False]))
    arguments = b.arguments(
        [prompt[10:13], other] if beside else [prompt[10:13]], [0, 6][: 1 + beside], [False] * (1 + beside)
    )
    call(b.arguments([prompt[:10]], [1], [False]))
    arguments |= {
        "num_prefills": 0,
        "num_decodes": int(beside),
        "num_spec_decodes": 1,
        "has_initial_state": torch.tensor([False]) if beside else None,
        "non_spec_query_start_loc": torch.tensor([0, 9], dtype=torch.int32) if beside else None,
        "non_spec_token_indx": torch.arange(3, 12, dtype=torch.int32) if beside else None,
        "non_spec_state_indices_tensor": torch.tensor([6], dtype=torch.int32) if beside else None,
        "spec_query_start_loc": torch.tensor([0, 3], dtype=torch.int32),
        "spec_token_indx": torch.arange(3, dtype=torch.int32),
        "spec_state_indices_tensor": torch.tensor([[5, 1, 4]], dtype=torch.int32),
        "num_accepted_tokens": torch.tensor([2], dtype=torch.int32),
    }
    call(arguments)
    for number, slot in enumerate([5, 1, 4]):
        wanted = hf.ask(b.layer, b.config, prompt[: 11 + number])
        assert hf.error(b.state[slot], wanted.state) < 1e-4
        assert hf.error(b.conv[slot], wanted.conv) < 1e-4
        assert hf.error(arguments["core_attn_out"][number], wanted.core[-1]) < 1e-4
    if beside:
        wanted = hf.ask(b.layer, b.config, other)
        assert hf.error(arguments["core_attn_out"][3:], wanted.core) < 1e-4
        assert hf.error(b.state[6], wanted.state) < 1e-4


CHECKED = {
    "dt_bias": (
        lambda a: a["dt_bias"].half(),
        "dt_bias dtype must match core_attn_out .*got dt_bias=Half, core_attn_out=BFloat16",
    ),
    "A_log": (lambda a: a["A_log"].bfloat16(), "A_log dtype must be float32, but got BFloat16"),
    "ssm_state": (
        lambda a: a["ssm_state"].double(),
        "ssm_state dtype must be float32/float16/bfloat16, but got Double",
    ),
    "non_spec_query_start_loc": (lambda a: a["non_spec_query_start_loc"].long(), "must be of int32"),
    "non_spec_state_indices_tensor": (lambda a: a["non_spec_state_indices_tensor"].long(), "must be of int32"),
    "has_initial_state": (lambda a: a["has_initial_state"].int(), "must be of bool"),
    "z": (lambda a: a["z"].transpose(0, 1).contiguous().transpose(0, 1), "z must be contiguous"),
    "projected_states_ba": (lambda a: a["projected_states_ba"][:, :-2].contiguous(), "projected_states_ba is"),
    "core_attn_out": (lambda a: a["core_attn_out"][:-1], "must be >= num_actual_tokens"),
    "head_k_dim": (lambda a: 16, "projected_states_qkvz is"),
}


@pytest.mark.parametrize("strict", [False, True], ids=["as-it-is", "strict"])
@pytest.mark.parametrize("name", CHECKED)
def test_what_the_kernel_checks(name: str, strict: bool) -> None:
    b = bench(BF16)
    arguments = b.arguments(prompts_of([5, 3]), [1, 2], [False, False])
    change, message = CHECKED[name]
    arguments[name] = change(arguments)
    with registered("0.1.9", strict=strict), pytest.raises(RuntimeError, match=message) as caught:
        call(arguments)
    assert not isinstance(caught.value, ContractError)


UNCHECKED = {
    "projected_states_qkvz": lambda a: a["projected_states_qkvz"].half(),
    "projected_states_ba": lambda a: a["projected_states_ba"].half(),
    "z": lambda a: a["z"].half(),
    "conv_state": lambda a: a["conv_state"].half(),
    "conv_weights": lambda a: a["conv_weights"].half(),
}


@pytest.mark.parametrize("name", UNCHECKED)
def test_what_the_kernel_reads_as_other_bits(name: str) -> None:
    b = bench(BF16)
    b.conv.normal_()
    prompts = prompts_of([5, 3])
    arguments = b.arguments(prompts, [1, 2], [True, False])
    arguments["ssm_state"].zero_()
    good = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in arguments.items()}
    call(good)
    arguments[name] = UNCHECKED[name](arguments)
    with pytest.raises(ContractError, match=r"projected_states_qkvz"):
        call(arguments)
    with registered("0.1.9", strict=False):
        call(arguments)
    got = arguments["z"] if name == "z" else arguments["core_attn_out"]
    wanted = good["z"] if name == "z" else good["core_attn_out"]
    off = (got.float() - wanted.float()).norm() / wanted.float().norm()
    # The slightest of them, b and a, changes the result by a quarter; rounding by less than a hundredth.
    assert not off < 0.1, f"the wrong bits went unnoticed: {off}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"non_spec_state_indices_tensor": torch.tensor([1, -1], dtype=torch.int32)}, "outside"),
        ({"non_spec_state_indices_tensor": torch.tensor([1, SLOTS], dtype=torch.int32)}, "outside"),
        ({"non_spec_state_indices_tensor": torch.tensor([1, 1], dtype=torch.int32)}, "share a slot"),
        ({"non_spec_query_start_loc": torch.tensor([0, 5, 9], dtype=torch.int32)}, "run over"),
        ({"non_spec_query_start_loc": torch.tensor([0, 8, 8], dtype=torch.int32)}, "no token"),
        ({"conv_weights": torch.zeros(384, 6, dtype=BF16)}, "width 6"),
        ({"conv_state": torch.zeros(SLOTS, 2, 384, dtype=BF16)}, "slot of conv_state"),
        ({"ssm_state": torch.zeros(SLOTS, 8, 32, 16, dtype=BF16)}, "slot of ssm_state"),
        ({"A_log": torch.zeros(7)}, "A_log is"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_kernel_reads_out_of_bounds(change: dict[str, torch.Tensor], message: str) -> None:
    arguments = bench(BF16).arguments(prompts_of([5, 3]), [1, 2], [False, False]) | change
    with pytest.raises(ContractError, match=message):
        call(arguments)


def test_versions_differ_where_they_are_said_to() -> None:
    arguments = bench(BF16).arguments(prompts_of([5, 3]), [1, 2], [False, False])
    longer = arguments | {"core_attn_out": arguments["core_attn_out"].repeat(2, 1, 1)}
    call(longer)
    later = (
        "num_spec_decodes",
        "non_spec_token_indx",
        "spec_query_start_loc",
        "spec_token_indx",
        "num_accepted_tokens",
    )
    older = {key: value for key, value in arguments.items() if key not in {*later, "spec_state_indices_tensor"}}
    with registered("0.1.7"):
        call(older)
        with pytest.raises(RuntimeError, match="must be num_actual_tokens"):
            call(older | {"core_attn_out": longer["core_attn_out"]})
        with pytest.raises(RuntimeError, match="expected at most 23"):
            call(arguments)
    both = arguments | {
        "num_spec_decodes": 1,
        "spec_query_start_loc": torch.tensor([0, 1], dtype=torch.int32),
        "spec_token_indx": torch.tensor([8], dtype=torch.int32),
        "spec_state_indices_tensor": torch.tensor([[5]], dtype=torch.int32),
        "num_accepted_tokens": torch.tensor([1], dtype=torch.int32),
    }
    with registered("0.1.13.1"), pytest.raises(RuntimeError, match="in the same invocation"):
        call(both)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_fused_decode_is_the_operator_in_float16(rows: int) -> None:
    from custom_esimd_kernels_vllm import esimd_gdn_conv_fused

    config = hf.make_config(k_heads=2, v_heads=4, head_dim=128)
    b = Bench(hf.make_layer(config, FP16), config, FP16, FP16)
    b.conv.normal_()
    b.state.normal_(std=0.1)
    arguments = b.arguments(prompts_of([1] * rows), list(range(2, 2 + rows)), [True] * rows)
    conv, state = b.conv.clone(), b.state.clone()
    out, z = torch.empty_like(arguments["core_attn_out"]), torch.empty_like(arguments["z"])
    call(arguments)

    def fused(dt_bias: torch.Tensor) -> None:
        slots = arguments["non_spec_state_indices_tensor"]
        zeros = torch.zeros(conv.size(2), dtype=FP16)
        given = (arguments["projected_states_qkvz"], conv, arguments["conv_weights"], zeros, slots)
        given += (arguments["A_log"].half(), dt_bias, arguments["projected_states_ba"], state, slots, out, z)
        esimd_gdn_conv_fused(*given, rows, 2, 4, 128, 128, 128**-0.5)

    with pytest.raises(ContractError, match=r"dt_bias as float16, but it is torch\.bfloat16"):
        fused(arguments["dt_bias"].bfloat16())
    fused(arguments["dt_bias"])
    assert torch.equal(z, arguments["z"])
    assert torch.equal(conv, b.conv)
    # It rounds q, k and v less often, and A_log once more.
    assert hf.error(out, arguments["core_attn_out"]) < 4e-3
    assert hf.error(state, b.state) < 4e-3
