"""The detector of gdn-fused-path on small trees whose layer goes its own way, or nowhere, on XPU and on a CPU."""

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
LAYER, OPS = "vllm/layers/delta.py", "vllm/platform_ops.py"
DISPATCH, STATES, NORMS = "vllm/layers/products.py", "vllm/layers/states.py", "vllm/layers/norms.py"
XPU, CPU, RANK, DTYPE, NORM = "xpu-forward", "cpu-forward", "conv-weight-rank", "state-dtype-ignored", "norm-in-half"

DELTA = """
    class DeltaLayer({base}):
        def get_state_shape(self):
            return Calculator.gated_delta_net_state_shape(self.heads)

        def get_state_dtype(self):
            return Calculator.gated_delta_net_state_dtype(self.dtype, self.cache.ssm_dtype)

        def __init__(self, config):
            self.in_proj_qkvz = Column(config)
            self.A_log = Parameter(empty(4{a_log}))
            {choice}

        def forward(self, hidden):
            return self.chosen(hidden)

        def forward_cuda(self, hidden):
            return triton_rule(hidden)

        def forward_cpu(self, hidden):
            return plain_rule(hidden)

        def forward_xpu(self, hidden):
            {xpu}
"""
CHOICE = """
            if platform.is_xpu():
                self.chosen = self.forward_xpu
            elif platform.is_cpu():
                self.chosen = self.forward_cpu
            else:
                self.chosen = self.forward_cuda
"""
OP = "torch.ops._xpu_C.gdn_attention(hidden, A_log=self.A_log)"
CUSTOM = "torch.ops.vllm.delta_on_xpu(hidden)"
WRAPPED = """
    def implementation(hidden):
        torch.ops._xpu_C.gdn_attention(hidden)

    direct_register_custom_op(op_name="delta_on_xpu", op_func=breaking(implementation))
"""
CPU_LINEAR = """
    def dispatch(layer):
        {before}
        N, K = layer.weight.{sizes}
        layer.cpu_linear = product(N, K)
"""
GUARD = "if layer.weight.{rank} != 2:\n        layer.cpu_linear = None\n        return"
CALCULATOR = """
    class Calculator:
        def gated_delta_net_state_dtype(cls, dtype, {parameter}):
            return dtype
"""
GATED = """
    class RMSNormGated:
        def forward_native(self, x):
            {wide}
            return x * rsqrt({square})
"""


def tree(
    *,
    base: str = "Module",
    a_log: str = ", dtype=float32",
    choice: str = CHOICE,
    xpu: str = OP,
    ops: str = "",
    before: str = GUARD.format(rank="ndim"),
    sizes: str = "size()",
    parameter: str = "ssm_dtype",
    wide: str = "x = x.float()",
    square: str = "x.pow(2).mean(-1)",
    call: str = "self.dtype, self.cache.ssm_dtype",
) -> MemoryTree:
    """Return a tree that is sound but for what is said."""
    chosen = textwrap.indent(textwrap.dedent(choice), " " * 8).strip()
    layer = textwrap.dedent(DELTA).format(base=base, a_log=a_log, choice=chosen, xpu=xpu)
    return MemoryTree(
        {
            "vllm/__init__.py": "",
            LAYER: layer.replace("self.dtype, self.cache.ssm_dtype", call),
            OPS: textwrap.dedent(ops),
            DISPATCH: textwrap.dedent(CPU_LINEAR).format(before=before, sizes=sizes),
            STATES: textwrap.dedent(CALCULATOR).format(parameter=parameter),
            NORMS: textwrap.dedent(GATED).format(wide=wide, square=square),
        }
    )


@pytest.fixture(scope="module")
def fix() -> LoadedFix:
    return load_series(ROOT / "patches").fixes["gdn-fused-path"]


def parts(fix: LoadedFix, files: MemoryTree) -> list[str]:
    return sorted(finding.part for finding in fix.examine(files).findings)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param({}, [], id="sound"),
        pytest.param({"choice": "self.chosen = self.forward_cuda"}, [CPU, XPU], id="nothing but CUDA's"),
        pytest.param({"choice": CHOICE.replace("is_cpu", "is_rocm")}, [CPU], id="no way on a CPU"),
        pytest.param({"choice": CHOICE.replace("is_xpu", "is_rocm")}, [XPU], id="no way on XPU"),
        pytest.param({"choice": CHOICE.replace("forward_cpu", "forward_xpu")}, [CPU], id="XPU's way on a CPU"),
        pytest.param({"choice": CHOICE.replace("forward_xpu", "forward_cuda")}, [XPU], id="CUDA's way on XPU"),
        pytest.param({"choice": "pass", "base": "CustomOp"}, [], id="picked by the class it is made from"),
        pytest.param({"xpu": "return triton_rule(hidden)"}, [XPU], id="another kernel on XPU"),
        pytest.param({"xpu": OP.replace("_xpu_C", "_C")}, [XPU], id="an operator of another library"),
        pytest.param({"xpu": CUSTOM}, [XPU], id="a custom op that nobody registers"),
        pytest.param({"xpu": CUSTOM, "ops": WRAPPED}, [], id="through a custom op in another module"),
        pytest.param({"xpu": CUSTOM, "ops": WRAPPED.replace("_xpu_C", "_C")}, [XPU], id="a custom op of another"),
        pytest.param({"a_log": ""}, [XPU], id="A_log in the default dtype"),
        pytest.param({"a_log": ", dtype=bfloat16"}, [XPU], id="A_log in bfloat16"),
        pytest.param({"a_log": "", "xpu": OP.replace("=self.A_log", "=self.A_log.float()")}, [], id="A_log widened"),
        pytest.param({"before": "pass"}, [RANK], id="sizes of any weight unpacked"),
        pytest.param({"before": "pass", "sizes": "shape"}, [RANK], id="its shape unpacked"),
        pytest.param({"before": GUARD.format(rank="dim()")}, [], id="rank asked by a call"),
        pytest.param({"before": GUARD.replace("return", "pass").format(rank="ndim")}, [RANK], id="asked in vain"),
        pytest.param({"before": GUARD.format(rank="is_meta")}, [RANK], id="another question"),
        pytest.param({"parameter": "cache_dtype"}, [DTYPE], id="a calculator that is not told"),
        pytest.param({"call": "self.dtype"}, [DTYPE], id="a layer that does not tell"),
        pytest.param({"wide": "pass"}, [NORM], id="a norm in half"),
        pytest.param({"wide": "pass", "square": "x.square().mean(-1)"}, [NORM], id="squared by name"),
        pytest.param({"wide": "x = x.to(float32)"}, [], id="a norm widened by to"),
    ],
)
def test_what_is_found(fix: LoadedFix, change: dict[str, str], found: list[str]) -> None:
    assert parts(fix, tree(**change)) == found


def test_findings_are_placed(fix: LoadedFix) -> None:
    files = tree(choice="pass", before="pass", wide="pass", parameter="cache_dtype", call="self.dtype")
    for finding in fix.examine(files).findings:
        line = files.files[finding.path].splitlines()[finding.line - 1]
        wanted = {XPU: "class DeltaLayer", CPU: "class DeltaLayer", RANK: "N, K", NORM: "pow(2)"}
        assert wanted.get(finding.part, "gated_delta_net_state_dtype") in line


def test_layers_with_other_projections_are_left_alone(fix: LoadedFix) -> None:
    files = tree(choice="pass")
    files.files[LAYER] = files.files[LAYER].replace("in_proj_qkvz", "in_proj_qkv")
    assert not fix.examine(files).subject
    assert parts(fix, files) == []


def test_mended_half_mended_and_missing_trees_are_told_apart(fix: LoadedFix) -> None:
    def kind(files: MemoryTree) -> VerdictKind:
        return judge(fix, "0.15.1", fix.examine(files), Fit(tree="t"), {}).kind

    broken = {"choice": "pass", "before": "pass", "wide": "pass", "parameter": "cache_dtype"}
    assert kind(tree(**broken)) is VerdictKind.APPLIES
    assert kind(tree(before="pass")) is VerdictKind.PARTLY
    assert kind(tree()) is VerdictKind.UPSTREAM
    assert kind(MemoryTree({"vllm/__init__.py": ""})) is VerdictKind.NOT_PRESENT
