"""The proof: a layer with buffers, run with the strict operator and with the vendor's fused calls, in both dtypes.

`PYTHONPATH=TREE:tests python -m pytest patches/gdn-dtype/test_gdn_dtype.py`, TREE holding a layer that needs torch
alone as vllm/model_executor/models/qwen3_next.py: tests/downstream/qwen3_next_xpu.py, as it is (red) or repaired
(green). `xpukernels` registers the operator with every check that vllm-xpu-kernels makes, and refuses as well what the
real one reads as other bits.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
xpukernels = pytest.importorskip("xpukernels", reason="tests/ is not on PYTHONPATH")

LAYER = "vllm/model_executor/models/qwen3_next.py"
SLOTS = 8
WAYS = {
    "one token": ("forward_xpu", 1),
    "small batch": ("forward_xpu", 7),
    "the small limit": ("forward_xpu", 64),
    "large batch": ("forward_xpu", 65),
    "one token, projected": ("forward_xpu_with_precomputed_proj", 1),
    "small batch, projected": ("forward_xpu_batched_precomputed_proj", 7),
    "large batch, projected": ("forward_xpu_batched_precomputed_proj", 65),
}


def module(fused: bool) -> ModuleType:
    """Load the layer anew: it looks for the fused calls while it is imported."""
    path = next((Path(folder) / LAYER for folder in sys.path if (Path(folder) / LAYER).is_file()), None)
    if path is None:
        pytest.fail(f"no folder of PYTHONPATH holds {LAYER}")
    spec = importlib.util.spec_from_file_location(f"layer_{fused}", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(params=[False, True], ids=["generic", "fused"])
def kernels(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Register the operator strictly, without and with the fused calls beside it."""
    with xpukernels.registered("0.1.7", strict=True, with_fused=request.param):
        yield request.param


def ran(fused: bool, way: str, dtype: Any) -> Any:
    """Return what a layer puts out for decodes of some sequences, each with a state of its own, in float32."""
    method, tokens = WAYS[way]
    made = module(fused)
    torch.manual_seed(7)
    weights = made.Qwen3NextGatedDeltaNet(made.Config(head_k_dim=128, head_v_dim=128)).state_dict()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        layer = made.Qwen3NextGatedDeltaNet(made.Config(head_k_dim=128, head_v_dim=128))
    finally:
        torch.set_default_dtype(before)
    layer.load_state_dict({name: value for name, value in weights.items() if name in dict(layer.named_parameters())})
    torch.manual_seed(8)
    count = max(tokens, SLOTS)
    heads = (layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
    conv = torch.randn(count, 3, layer.conv_dim).to(dtype) * 0.1
    layer.kv_cache = [(conv, torch.randn(count, *heads).to(dtype) * 0.1)]
    x = torch.randn(tokens, layer.hidden_size).to(dtype)
    made.get_forward_context().attn_metadata = {
        "layer": made.Metadata(
            num_prefills=0,
            num_decodes=tokens,
            num_actual_tokens=tokens,
            has_initial_state=None,
            non_spec_query_start_loc=torch.arange(tokens + 1, dtype=torch.int32),
            non_spec_state_indices_tensor=torch.arange(tokens, dtype=torch.int32),
        )
    }
    output = torch.full_like(x, float("nan"))
    with torch.no_grad():
        if method == "forward_xpu":
            layer.forward_xpu(x, output)
        else:
            projected = (layer.in_proj_qkvz(x)[0], layer.in_proj_ba(x)[0])
            getattr(layer, method)(*projected, output)
    return output.float()


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_reaches_the_operator_in_one_dtype(way: str, kernels: bool) -> None:
    """Run a bfloat16 layer and hold it against the same one in float16."""
    half, brain = ran(kernels, way, torch.float16), ran(kernels, way, torch.bfloat16)
    assert torch.isfinite(brain).all()
    # The same weights and inputs but for rounding: bfloat16 has 8 bits of precision.
    assert (brain - half).abs().max() <= 0.05 * half.abs().max()


@pytest.mark.parametrize("way", WAYS)
def test_float16_runs_as_before(way: str, kernels: bool) -> None:
    """Run a float16 layer, with the fused calls where there are any."""
    assert torch.isfinite(ran(kernels, way, torch.float16)).all()
    if os.environ.get("MAX_DECODE_BSZ"):
        pytest.fail("MAX_DECODE_BSZ moves the limits that are tried here")
