"""The detector of gdn-state-dtype on small trees of every shape that settles the dtypes, or does not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from seatrial.model.fixes import VerdictKind
from seatrial.model.series import LoadedFix
from seatrial.model.verdict import Fit, judge
from seatrial.stages.fix_files import load_series
from tests.fixlab import MemoryTree

ROOT = Path(__file__).parents[2]
KERNELS = "vllm/layers/cpu_delta.py"
PLATFORM = "vllm/platforms/processor.py"
CALCULATOR = "vllm/layers/states.py"
STATE, LATE = "state-dtype-default", "dtype-refused-late"

FORWARD = """
    import torch

    def delta_core(mixed, out):
        assert mixed.dtype == torch.bfloat16, "bfloat16 only"
        out[:] = ops.chunk_gated_delta_rule_cpu(mixed, initial_state=layer.state)
"""
STATES = """
    class Calculator:
        @classmethod
        def gated_delta_net_state_dtype(cls, model_dtype, cache_dtype, state_dtype="auto"):
            return cls._pair(model_dtype, cache_dtype, state_dtype)

        @classmethod
        def _pair(cls, model_dtype, cache_dtype, state_dtype):
            first = get_kv_cache_torch_dtype(cache_dtype, model_dtype)
            if state_dtype == "auto":
                return (first, first)
            return (first, STR_DTYPE_TO_TORCH_DTYPE[state_dtype])
"""
CHECK = """
    import torch

    {before}
    class Processor(Platform):
        device_type: str = "cpu"

        @classmethod
        def check_and_update_config(cls, vllm_config):
            model_config = vllm_config.model_config
            cache_config = vllm_config.cache_config
            if cache_config.block_size % 32 != 0:
                logger.warning("block size")
    {body}
            os.environ["THREADS"] = str(count())
"""
AMX_ONLY = """
if torch.cpu._is_amx_tile_supported() and cache_config.mamba_ssm_cache_dtype != "float32":
    cache_config.mamba_ssm_cache_dtype = "float32"
"""
ALWAYS = """
if cache_config.mamba_ssm_cache_dtype != "float32":
    cache_config.mamba_ssm_cache_dtype = "float32"
"""
NARROW_PASSES = """
wanted = cache_config.mamba_ssm_cache_dtype
if torch.cpu._is_amx_tile_supported() and wanted != "float32":
    if wanted in ("float16", "bfloat16") and backend_of(vllm_config) == "gdn":
        logger.info("kept")
    else:
        cache_config.mamba_ssm_cache_dtype = "float32"
"""
REFUSES = """
if model_config is not None and "linear_attention" in (model_config.hf_text_config.layer_types or ()):
    if model_config.dtype != torch.bfloat16:
        raise ValueError("use --dtype bfloat16")
"""


def tree(check: str, *, before: str = "", forward: str = FORWARD, states: str = STATES) -> MemoryTree:
    """Return a tree whose CPU platform has these statements in its config check."""
    text = textwrap.dedent(CHECK).format(before=textwrap.dedent(before), body=textwrap.indent(check, " " * 8))
    return MemoryTree(
        {PLATFORM: text, KERNELS: textwrap.dedent(forward), CALCULATOR: textwrap.dedent(states), "vllm/__init__.py": ""}
    )


@pytest.fixture(scope="module")
def fix() -> LoadedFix:
    """Return the fix as the series holds it."""
    return load_series(ROOT / "patches").fixes["gdn-state-dtype"]


def parts(fix: LoadedFix, files: MemoryTree) -> list[str]:
    """Return the parts that the detector finds, in the order of their places."""
    return [finding.part for finding in fix.examine(files).findings]


def test_both_halves_are_seen_and_placed(fix: LoadedFix) -> None:
    files = tree(AMX_ONLY)
    late, state = fix.examine(files).findings
    assert (late.part, late.path, state.part, state.path) == (LATE, KERNELS, STATE, PLATFORM)
    assert "assert" in files.files[KERNELS].splitlines()[late.line - 1]
    assert 'mamba_ssm_cache_dtype = "float32"' in files.files[PLATFORM].splitlines()[state.line - 1]
    assert "float16 or float32" in late.message


def test_cured_tree_is_clean(fix: LoadedFix) -> None:
    assert parts(fix, tree(REFUSES + ALWAYS)) == []


def test_tree_without_cpu_kernels_is_no_subject(fix: LoadedFix) -> None:
    wrapper = """
        def chunk_gated_delta_rule_cpu(query):
            return torch.ops._C.chunk_gated_delta_rule_cpu(query)

        def elsewhere(query):
            return chunk_gated_delta_rule(query)
    """
    files = tree(AMX_ONLY, forward=wrapper)
    assert not fix.examine(files).subject
    assert not fix.examine(MemoryTree({"vllm/__init__.py": ""})).subject


@pytest.mark.parametrize(
    ("check", "found"),
    [
        pytest.param(REFUSES + AMX_ONLY, [STATE], id="state left to hosts with AMX"),
        pytest.param(REFUSES + NARROW_PASSES, [], id="kernels take a narrow state"),
        pytest.param(REFUSES, [STATE], id="nobody ever looked at the state"),
        pytest.param(
            REFUSES + ALWAYS.replace('!= "float32"', 'not in ("auto", "float32")'), [STATE], id="default forgotten"
        ),
        pytest.param(ALWAYS, [LATE], id="no refusal"),
        pytest.param(ALWAYS + REFUSES.replace("bfloat16:", "float16:"), [LATE], id="refuses the wrong one"),
        pytest.param(
            ALWAYS + REFUSES.replace("linear_attention", "full_sliding"), [LATE], id="refuses other models only"
        ),
        pytest.param(
            ALWAYS + REFUSES.replace("if model_config is not None", "if torch.cpu._is_amx_tile_supported()"),
            [LATE],
            id="refuses on some hosts only",
        ),
        pytest.param(
            ALWAYS + REFUSES.replace("if model_config is not None", "if elsewhere(vllm_config)"),
            [LATE],
            id="refuses under a condition that is not known",
        ),
        pytest.param(ALWAYS + REFUSES.replace("raise ValueError", "logger.warning"), [LATE], id="warns only"),
        pytest.param(
            ALWAYS + REFUSES.replace("!= torch.bfloat16", "not in (torch.bfloat16, torch.float16)"),
            [LATE],
            id="refuses one of two",
        ),
        pytest.param(
            "try:\n" + textwrap.indent(REFUSES, "    ") + "except ValueError:\n    pass\n" + ALWAYS,
            [LATE],
            id="refusal swallowed",
        ),
        pytest.param(ALWAYS + "if model_config.dtype != torch.bfloat16:\n    return\n" + REFUSES, [LATE], id="returns"),
        pytest.param(ALWAYS + "model_config.dtype = torch.bfloat16\n", [], id="recast instead of refused"),
    ],
)
def test_what_settles_a_dtype(fix: LoadedFix, check: str, found: list[str]) -> None:
    assert parts(fix, tree(check)) == found


def test_helpers_early_returns_and_aliases_are_followed(fix: LoadedFix) -> None:
    before = """
        def runs_delta(config):
            kinds = getattr(config.hf_text_config, "layer_types", None) or ()
            if not any(kind == "linear_attention" for kind in kinds):
                return False
            return hasattr(config.hf_text_config, "linear_num_value_heads")

        def settle(config, cache):
            if not runs_delta(config):
                return
            taken = {torch.bfloat16}
            asked = config.dtype
            if asked not in taken:
                raise ValueError("no")
            cache.mamba_ssm_cache_dtype = "float32"
    """
    assert parts(fix, tree("settle(config=model_config, cache=cache_config)", before=before)) == []
    blind = before.replace('"linear_attention"', '"mamba"')
    assert parts(fix, tree("settle(config=model_config, cache=cache_config)", before=blind)) == [LATE, STATE]


def test_default_may_be_decided_where_the_state_is_allocated(fix: LoadedFix) -> None:
    decides = STATES.replace(
        'if state_dtype == "auto":',
        'if state_dtype == "auto" and current_platform.is_cpu():\n'
        '                return (first, torch.float32)\n            if state_dtype == "auto":',
    )
    assert parts(fix, tree(REFUSES + AMX_ONLY, states=decides)) == []
    elsewhere = decides.replace("is_cpu", "is_xpu")
    assert parts(fix, tree(REFUSES + AMX_ONLY, states=elsewhere)) == [STATE]


def test_dtype_with_a_branch_of_its_own_is_not_late(fix: LoadedFix) -> None:
    forward = FORWARD.replace(
        "        assert",
        "        if mixed.dtype == torch.float16 and HAS_TRITON:\n            return other(mixed)\n        assert",
    )
    late = fix.examine(tree(ALWAYS, forward=forward)).findings
    assert [finding.part for finding in late] == [LATE]
    assert "float32" in late[0].message
    assert "float16" not in late[0].message


def test_half_mended_upstream_is_partly(fix: LoadedFix) -> None:
    def kind(files: MemoryTree) -> VerdictKind:
        return judge(fix, "0.28.0", fix.examine(files), Fit(tree="t"), {}).kind

    assert kind(tree(AMX_ONLY)) is VerdictKind.APPLIES
    assert kind(tree(NARROW_PASSES)) is VerdictKind.PARTLY
    assert kind(tree(REFUSES + NARROW_PASSES)) is VerdictKind.UPSTREAM
    assert kind(MemoryTree({"vllm/__init__.py": ""})) is VerdictKind.NOT_PRESENT
