"""The dataflow from literal 16-bit allocations to kernels, on small modules that say the same thing in every way."""

from __future__ import annotations

import ast
import textwrap

import pytest

from seatrial.model.errors import IntegrityError
from seatrial.model.scratch import Analysis, Hazard, analyse, worth_parsing

PATH = "vllm/model_executor/models/layer.py"
KERNEL = "torch.ops._xpu_C.gdn_attention"
MODULE = """
import functools
import os
import torch
from torch import nn
from torch import float16 as f16
{top}

class Layer(nn.Module):
    {shared}

    def __init__(self, config, prefix=""):
        super().__init__()
        self.limit = int(os.environ.get("LIMIT", "64"))
        self.dt_bias = nn.Parameter(torch.ones(4))
        device = config.device
        {made}

    {helpers}

    def forward_xpu(self, hidden_states: torch.Tensor, output: torch.Tensor):
        tokens = hidden_states.size(0)
        {before}
        if tokens <= self.limit:
            out = {taken}
        else:
            out = torch.empty((tokens, 4), dtype=hidden_states.dtype)
        {between}
        {call}
"""
MADE = "self.buf = torch.empty((64, 4), dtype=torch.float16, device=device)"
TAKEN = "self.buf[:tokens]"
CALL = "torch.ops._xpu_C.gdn_attention(out, hidden_states, activation='silu', dt_bias=self.dt_bias)"


def source(**parts: str) -> str:
    """Return a module; a part of several lines is indented to its place."""
    given = {"top": "", "shared": "pass", "made": MADE, "helpers": "pass", "before": "pass", "taken": TAKEN}
    given |= {"between": "pass", "call": CALL} | parts
    depth = {"top": 0, "shared": 4, "helpers": 4, "made": 8, "before": 8, "between": 8, "call": 8, "taken": 12}
    laid = {
        name: textwrap.indent(textwrap.dedent(text).strip("\n"), " " * depth[name]).lstrip()
        for name, text in given.items()
    }
    text = MODULE.format(**laid)
    ast.parse(text)
    return text


def found(**parts: str) -> Analysis:
    """Analyse a module, and see that its bytes would not have been passed over."""
    text = source(**parts)
    result = analyse(text, PATH)
    assert not (result.hazards or result.fused) or worth_parsing(text.encode(), PATH)
    return result


def only(analysis: Analysis) -> Hazard:
    (hazard,) = analysis.hazards
    return hazard


def line_of(text: str, words: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


def test_everything_about_a_hazard_is_said() -> None:
    text = source()
    hazard = only(analyse(text, PATH))
    made = hazard.allocation
    assert (hazard.cls, hazard.kind, hazard.parameter) == ("Layer", "mismatch", "self.dt_bias")
    assert (made.target, made.dtype, made.form, made.function) == ("self.buf", "float16", "argument", "Layer.__init__")
    assert made.call_span.line == line_of(text, MADE)
    for span, words in ((made.dtype_span, "torch.float16"), (made.call_span, MADE.partition(" = ")[2])):
        line = text.splitlines()[span.line - 1]
        assert line[span.column : span.end_column] == words
    (use,) = hazard.uses
    assert (use.method, use.function, use.kernel) == ("Layer.forward_xpu", "Layer.forward_xpu", KERNEL)
    assert (use.branch, use.branch_line) == ("tokens <= self.limit", line_of(text, "if tokens"))
    assert (use.call.line, use.argument, use.path) == (line_of(text, CALL), "0", PATH)
    assert [known.parameter for known in analyse(text, PATH).kernels] == ["self.dt_bias"]


ALLOCATED = {
    "keywords in another order": "self.buf = torch.zeros(device=device, dtype=torch.half, size=(64, 4))",
    "bfloat16": "self.buf = torch.empty((64, 4), dtype=torch.bfloat16)",
    "dtype in a name": "kind = torch.float16\nself.buf = torch.empty((64, 4), dtype=kind)",
    "dtype in two names": "a = torch.float16\nb = a\nself.buf = torch.empty((64, 4), dtype=b)",
    "dtype in an attribute": "self.kind = torch.half\nself.buf = torch.empty((64, 4), dtype=self.kind)",
    "dtype by another import": "self.buf = torch.empty((64, 4), dtype=f16)",
    "dtype by getattr": "self.buf = torch.empty((64, 4), dtype=getattr(torch, 'half'))",
    "one of two literals": "self.buf = torch.empty((64, 4), dtype=torch.half if device else torch.bfloat16)",
    "inside a call": "self.buf = pinned(torch.empty((64, 4), dtype=torch.float16), device)",
    "half": "self.buf = torch.empty((64, 4), device=device).half()",
    "to": "self.buf = torch.zeros(64, 4).to(torch.float16)",
    "to, by keyword": "self.buf = torch.zeros(64, 4).to(device=device, dtype=torch.float16)",
    "to, of a name": "fresh = torch.zeros(64, 4)\nself.buf = fresh.to(torch.float16)",
    "full": "self.buf = torch.full((64, 4), 0.0, dtype=torch.float16)",
    "like": "self.buf = torch.zeros_like(self.dt_bias, dtype=torch.float16)",
    "new": "self.buf = self.dt_bias.new_empty((64, 4), dtype=torch.float16)",
    "keywords spread": "more = {'dtype': torch.float16, 'device': device}\nself.buf = torch.empty((64, 4), **more)",
    "keywords by dict": "more = dict(dtype=torch.float16)\nself.buf = torch.empty((64, 4), **more)",
    "partial": "new = functools.partial(torch.empty, dtype=torch.float16)\nself.buf = new((64, 4))",
    "lambda": "new = lambda *size: torch.empty(size, dtype=torch.float16)\nself.buf = new(64, 4)",
    "function inside": "def new(size):\n    return torch.empty(size, dtype=torch.float16)\nself.buf = new((64, 4))",
    "register_buffer": "self.register_buffer('buf', torch.empty((64, 4), dtype=torch.float16), persistent=False)",
    "setattr": "setattr(self, 'buf', torch.empty((64, 4), dtype=torch.float16))",
    "setattr in a loop": "for name in ('buf', 'other'):\n    setattr(self, name, torch.empty(64, 4, dtype=torch.half))",
    "setattr over items": """
        for name, width in {"buf": 4, "other": 8}.items():
            setattr(self, f"{name}", torch.empty((64, width), dtype=torch.float16))
    """,
    "unpacked": "self.buf, self.other = torch.empty(64, 4, dtype=torch.half), torch.empty(64, 4)",
    "unpacked from a comprehension": "self.buf, self.z = (torch.empty(64, 4, dtype=torch.half) for _ in range(2))",
    "chained": "self.buf = self.other = torch.empty((64, 4), dtype=torch.float16)",
    "annotated": "self.buf: torch.Tensor = torch.empty((64, 4), dtype=torch.float16)",
    "split": "self.buf, self.z = torch.empty((64, 8), dtype=torch.float16).split(4, dim=-1)",
    "view of another": "both = torch.empty((64, 8), dtype=torch.float16)\nself.buf = both[:, :4]",
    "under a condition": "if device:\n    self.buf = torch.empty((64, 4), dtype=torch.float16)",
    "in try": "try:\n    self.buf = torch.empty((64, 4), dtype=torch.float16)\nexcept RuntimeError:\n    raise",
    "in with": "with torch.device(device):\n    self.buf = torch.empty((64, 4), dtype=torch.float16)",
}


@pytest.mark.parametrize("made", ALLOCATED.values(), ids=ALLOCATED)
def test_allocations_are_seen(made: str) -> None:
    assert KERNEL in {use.kernel for hazard in found(made=made).hazards for use in hazard.uses}


HELPED = {
    "method": ("self.buf = self.new((64, 4))", "def new(self, size):\n    return torch.empty(size, dtype=torch.half)"),
    "method, dtype by position": (
        "self.buf = self.new((64, 4), torch.float16)",
        "def new(self, size, dtype):\n    return torch.empty(size, dtype=dtype)",
    ),
    "method, dtype by keyword": (
        "self.buf = self.new(dtype=torch.float16, size=(64, 4))",
        "def new(self, size, *, dtype):\n    return torch.empty(size, dtype=dtype)",
    ),
    "method, dtype by default": (
        "self.buf = self.new((64, 4))",
        "def new(self, size, dtype=torch.float16):\n    return torch.empty(size, dtype=dtype)",
    ),
    "static method": (
        "self.buf = self.new((64, 4))",
        "@staticmethod\ndef new(size):\n    return torch.empty(size, dtype=torch.half)",
    ),
    "all buffers in a method": (
        "self.allocate()",
        "def allocate(self):\n    self.buf = torch.empty((64, 4), dtype=torch.half)",
    ),
    "property": ("pass", "@property\ndef buf(self):\n    return torch.empty((64, 4), dtype=torch.float16)"),
}


@pytest.mark.parametrize(("made", "helpers"), HELPED.values(), ids=HELPED)
def test_helpers_are_followed(made: str, helpers: str) -> None:
    hazard = only(found(made=made, helpers=helpers))
    assert {use.branch for use in hazard.uses} == {"tokens <= self.limit"}


def test_constants_and_functions_of_the_module_and_the_class_are_followed() -> None:
    by_name = "self.buf = torch.empty((64, 4), dtype=KIND)"
    assert only(found(top="KIND = torch.float16", made=by_name)).allocation.dtype == "float16"
    assert only(found(shared="KIND = torch.half", made=by_name.replace("KIND", "self.KIND"))).cls == "Layer"
    helper = "def new(*size, kind=torch.float16):\n    return torch.empty(size, dtype=kind)"
    hazard = only(found(top=helper, made="self.buf = new(64, 4)"))
    assert (hazard.allocation.target, hazard.allocation.function) == ("self.buf", "new")


TAKEN_IN = {
    "slice": "self.buf[:tokens]",
    "view": "self.buf.view(-1, 4)[:tokens]",
    "reshape and more": "self.buf.narrow(0, 0, tokens).reshape(-1).contiguous().unsqueeze(0)",
    "empty_like": "torch.empty_like(self.buf[:tokens])",
    "dtype of another": "torch.empty((tokens, 4), dtype=self.buf.dtype)",
    "getattr": "getattr(self, 'buf')[:tokens]",
    "either": "self.buf if tokens else output",
    "in a list": "[self.buf, self.buf][0]",
    "allocated here": "torch.empty((tokens, 4), dtype=torch.float16, device=hidden_states.device)",
    "transposed": "self.buf.T",
    "out of a function of torch's": "torch.cat([self.buf, self.buf])",
    "walrus": "(inner := self.buf)",
}


@pytest.mark.parametrize("taken", TAKEN_IN.values(), ids=TAKEN_IN)
def test_ways_to_the_kernel_are_followed(taken: str) -> None:
    (use,) = only(found(taken=taken)).uses
    assert use.branch.startswith(("tokens <= self.limit", "tokens"))


CALLED = {
    "keywords in another order": "torch.ops._xpu_C.gdn_attention(dt_bias=self.dt_bias, x=hidden_states, out=out)",
    "overload": "torch.ops._xpu_C.gdn_attention.default(out, self.dt_bias)",
    "operator in a name": "op = torch.ops._xpu_C.gdn_attention\nop(out, self.dt_bias)",
    "namespace in a name": "ops = torch.ops._xpu_C\nops.gdn_attention(out, self.dt_bias)",
    "getattr": "getattr(torch.ops._xpu_C, 'gdn_attention')(out, self.dt_bias)",
    "arguments spread": "args = (out, self.dt_bias)\ntorch.ops._xpu_C.gdn_attention(*args)",
    "keywords spread": "more = {'dt_bias': self.dt_bias}\ntorch.ops._xpu_C.gdn_attention(out, **more)",
    "in a list": "torch.ops._xpu_C.gdn_attention([out, hidden_states], self.dt_bias)",
    "view of the parameter": "torch.ops._xpu_C.gdn_attention(out, self.dt_bias.view(1, -1))",
    "out of torch": "torch.mul(hidden_states, self.dt_bias, out=out)",
    "renamed on the way": "a = out\nb, c = a.view(-1), 1\ntorch.ops._xpu_C.gdn_attention(b, self.dt_bias)",
    "in a loop": "for _ in range(2):\n    torch.ops._xpu_C.gdn_attention(out, self.dt_bias)",
    "next turn of a loop": """
        held = None
        for _ in range(2):
            torch.ops._xpu_C.gdn_attention(held, self.dt_bias)
            held = out
    """,
}


@pytest.mark.parametrize("call", CALLED.values(), ids=CALLED)
def test_ways_to_call_are_seen(call: str) -> None:
    assert only(found(call=call)).parameter == "self.dt_bias"


@pytest.mark.parametrize(
    ("top", "call", "kernel"),
    [
        ("from vllm import _custom_ops as ops", "ops.fused(out, self.dt_bias)", "vllm._custom_ops.fused"),
        ("from flashinfer import fused", "fused(out, self.dt_bias)", "flashinfer.fused"),
        ("import sgl_kernel", "sgl_kernel.fused(out, self.dt_bias)", "sgl_kernel.fused"),
        ("from .ops.fused import fused", "fused(out, self.dt_bias)", "vllm.model_executor.models.ops.fused.fused"),
        ("@triton.jit\ndef kernel(a, b):\n    pass", "kernel[(1,)](out, self.dt_bias)", "kernel"),
        ("from vllm.x import kernel", "kernel[(1,)](out, self.dt_bias)", "vllm.x.kernel"),
    ],
)
def test_other_kernels_are_known(top: str, call: str, kernel: str) -> None:
    (use,) = only(found(top=top, call=call)).uses
    assert use.kernel == kernel


def test_a_helper_that_calls_the_kernel_is_named_beside_the_method() -> None:
    helper = "def core(self, out, x):\n    torch.ops._xpu_C.gdn_attention(out, x, dt_bias=self.dt_bias)"
    (use,) = only(found(helpers=helper, call="self.core(out, hidden_states)")).uses
    assert (use.method, use.function, use.branch) == ("Layer.forward_xpu", "Layer.core", "tokens <= self.limit")
    outside = "def core(layer, out):\n    torch.ops._xpu_C.gdn_attention(out, layer.dt_bias)"
    (use,) = only(found(top=outside, call="core(self, out)")).uses
    assert (use.function, use.parameter) == ("core", "layer.dt_bias")


def test_an_operator_that_finds_its_layer_by_name_is_followed_into_the_layer() -> None:
    operator = """
        from vllm.utils import direct_register_custom_op

        def layer_core(out, x, layer_name):
            context = get_forward_context()
            self = context.no_compile_layers[layer_name]
            self.core(out=out, x=x)

        direct_register_custom_op(op_name="layer_core_op", op_func=layer_core, mutates_args=["out"])
    """
    core = "def core(self, x, out):\n    torch.ops._xpu_C.gdn_attention(out, x, dt_bias=self.dt_bias)"
    call = "torch.ops.vllm.layer_core_op(out, hidden_states, self.prefix)"
    local = "torch.empty((tokens, 4), dtype=torch.float16)"
    uses = only(found(top=operator, made="pass", helpers=core, taken=local, call=call)).uses
    seen = {use.kernel: (use.function, use.branch, use.parameter) for use in uses}
    assert seen[KERNEL] == ("Layer.core", "tokens <= self.limit", "self.dt_bias")


def test_a_dictionary_of_buffers_keeps_its_keys_apart() -> None:
    made = (
        "self.bufs = {'out': torch.empty(64, 4, dtype=torch.float16), 'acc': torch.empty(64, 4, dtype=torch.float32)}"
    )
    assert only(found(made=made, taken="self.bufs['out'][:tokens]")).allocation.target == "self.bufs"
    assert found(made=made, taken="self.bufs['acc'][:tokens]").hazards == ()
    grown = "self.bufs = {}\nself.bufs['out'] = torch.empty((64, 4), dtype=torch.float16)"
    assert only(found(made=grown, taken="self.bufs['out']"))
    by_name = "self.bufs = {name: torch.empty((64, 4), dtype=torch.float16) for name in ('out', 'z')}"
    assert only(found(made=by_name, taken="self.bufs['out']"))
    listed = "self.bufs = []\nself.bufs.append(torch.empty((64, 4), dtype=torch.float16))"
    assert only(found(made=listed, taken="self.bufs[0]"))


def test_a_buffer_made_by_the_first_request_is_seen() -> None:
    lazy = "if self.buf is None:\n    self.buf = torch.empty((64, 4), dtype=torch.float16)"
    hazard = only(found(made="self.buf = None", before=lazy))
    assert (hazard.allocation.function, hazard.uses[0].branch) == ("Layer.forward_xpu", "tokens <= self.limit")


HARMLESS = {
    "nothing literal": {"made": "pass", "taken": "torch.empty((tokens, 4), dtype=hidden_states.dtype)"},
    "float32 accumulator": {"made": MADE.replace("float16", "float32")},
    "no dtype": {"made": "self.buf = torch.empty((64, 4), device=device)"},
    "integers": {"made": MADE.replace("float16", "int32")},
    "dtype of the configuration": {"made": MADE.replace("torch.float16", "config.dtype")},
    "dtype of a parameter": {"made": MADE.replace("torch.float16", "self.dt_bias.dtype")},
    "a literal where nothing is configured": {"made": MADE.replace("torch.float16", "config.dtype or torch.float16")},
    "a literal by getattr's default": {"made": MADE.replace("torch.float16", "getattr(config, 'dtype', torch.half)")},
    "a learned weight": {"made": "self.buf = nn.Parameter(torch.empty((64, 4), dtype=torch.float16))"},
    "never taken": {"taken": "torch.empty_like(hidden_states)"},
    "cast on the way": {"taken": "self.buf[:tokens].to(hidden_states.dtype)"},
    "cast to float32": {"taken": "self.buf[:tokens].float()"},
    "a cast of activations": {"taken": "hidden_states.to(torch.float16)"},
    "no kernel": {"call": "torch.nn.functional.linear(out, self.dt_bias)"},
    "no parameter, made for the call": {
        "taken": "torch.empty((tokens, 4), dtype=torch.float16)",
        "before": "x = hidden_states.float()",
        "call": "torch.ops._C.quantize(out, x)",
    },
    "parameter cast": {"call": "torch.ops._C.scale(out, self.dt_bias.float())"},
    "other branch": {
        "call": "if tokens > self.limit:\n    torch.ops._xpu_C.gdn_attention(out, hidden_states, self.dt_bias)"
    },
    "other branch, by a name": {
        "before": "small = tokens <= self.limit",
        "taken": "self.buf if small else hidden_states",
        "call": "if not small:\n    torch.ops._xpu_C.gdn_attention(out, hidden_states, self.dt_bias)",
    },
    "other branch, after a return": {
        "between": "if tokens <= self.limit:\n    return",
    },
    "other branch, by alternatives": {
        "between": """
            if tokens <= self.limit and self.fused:
                return
            if tokens <= self.limit and not self.fused:
                return
        """,
    },
    "guarded branch": {"taken": "self.buf if hidden_states.dtype == torch.float16 else torch.empty_like(output)"},
    "guarded branch, of two tensors": {
        "taken": "self.buf if self.buf.dtype == hidden_states.dtype else torch.empty_like(output)"
    },
    "guarded call": {"call": f"if torch.float16 == hidden_states.dtype and tokens:\n    {CALL}"},
    "guarded by a name": {"before": "halves = hidden_states.dtype == torch.half", "call": f"if halves:\n    {CALL}"},
    "guarded by an attribute": {
        "made": f"self.halves = config.dtype == torch.float16\n{MADE}",
        "call": f"if self.halves:\n    {CALL}",
    },
    "guarded by a method": {
        "helpers": "def halves(self, x):\n    return x.dtype == torch.float16",
        "call": f"if self.halves(hidden_states):\n    {CALL}",
    },
    "guarded by either of two": {
        "call": f"if self.dt_bias.dtype == torch.half or hidden_states.dtype == torch.float16:\n    {CALL}"
    },
    "guarded by an early return": {"before": "if hidden_states.dtype != torch.float16:\n    return output"},
    "guarded by an assertion": {"before": "assert hidden_states.dtype == torch.float16"},
    "guarded when it is made": {"made": f"if config.dtype != torch.float16:\n    raise ValueError(config)\n{MADE}"},
    "guarded in a list of one": {"call": f"if hidden_states.dtype in (torch.float16,):\n    {CALL}"},
}


@pytest.mark.parametrize("parts", HARMLESS.values(), ids=HARMLESS)
def test_what_is_harmless_is_not_reported(parts: dict[str, str]) -> None:
    assert found(**parts).hazards == ()


def test_activations_alone_count_for_buffers_that_outlive_the_call_or_follow_them_elsewhere() -> None:
    held = found(call="torch.ops._C.activate(self.buf, hidden_states)")
    assert (only(held).kind, only(held).parameter) == ("mismatch", "hidden_states")
    followed = found(taken="torch.empty((tokens, 4), dtype=torch.float16)", call="torch.ops._C.activate(out, output)")
    assert only(followed).parameter == "output"
    local = f"y = torch.empty_like(hidden_states, dtype=torch.float16)\ntorch.ops._C.quantize(y, hidden_states)\n{CALL}"
    assert only(found(call=local)).allocation.target == "self.buf"


STILL = {
    "two tensors agree or it raises": "if out.dtype != self.dt_bias.dtype:\n    raise RuntimeError('dtypes')",
    "assertion of two tensors": "assert out.dtype == self.dt_bias.dtype",
    "guarded against another dtype": "if hidden_states.dtype == torch.float32:\n    return",
    "one of several dtypes": "if hidden_states.dtype not in (torch.float16, torch.bfloat16):\n    return",
    "dtype of something else": "assert self.kv_cache.dtype == torch.float16",
    "guard that may not hold": "if hidden_states.dtype != torch.float16 and tokens:\n    return",
    "condition on a name that changes": "tokens = 100\nif tokens <= self.limit:\n    return",
}


@pytest.mark.parametrize("between", STILL.values(), ids=STILL)
def test_what_only_looks_guarded_is_reported(between: str) -> None:
    assert only(found(between=between)).parameter == "self.dt_bias"


FUSED = "from custom_esimd_kernels_vllm import esimd_gemm"


def test_kernels_that_take_float16_alone_are_a_kind_of_their_own() -> None:
    analysis = found(top=FUSED, call="esimd_gemm(hidden_states.view(torch.int8), self.scale, out)")
    assert (only(analysis).kind, only(analysis).parameter) == ("fused16", "")
    (fused,) = analysis.fused
    assert (fused.method, fused.kernel, fused.branch) == (
        "Layer.forward_xpu",
        "custom_esimd_kernels_vllm.esimd_gemm",
        "",
    )


@pytest.mark.parametrize(
    ("call", "calls"),
    [
        ("if hidden_states.dtype == torch.float16:\n    esimd_gemm(hidden_states)", 0),
        ("if tokens == 1 and hidden_states.dtype == torch.float16:\n    esimd_gemm(hidden_states)", 0),
        ("if hidden_states.dtype != torch.float16:\n    pass\nelse:\n    esimd_gemm(hidden_states)", 0),
        ("if tokens == 1:\n    esimd_gemm(hidden_states)", 1),
        ("if hidden_states.dtype == torch.bfloat16:\n    esimd_gemm(hidden_states)", 1),
        ("if tokens == 1 or hidden_states.dtype == torch.float16:\n    esimd_gemm(hidden_states)", 1),
    ],
)
def test_a_fused_call_is_reported_unless_float16_alone_comes_to_it(call: str, calls: int) -> None:
    assert len(found(top=FUSED, made="pass", taken="output", call=call).fused) == calls


def test_classes_that_are_no_modules_are_left_alone() -> None:
    assert analyse(source().replace("nn.Module", "object").replace("forward_xpu", "apply"), PATH).hazards == ()


def test_subclasses_are_seen_with_what_they_inherit() -> None:
    text = source() + textwrap.dedent(
        """
        class Other(Layer):
            def __init__(self, config):
                super().__init__(config)
                self.buf = torch.empty((1, 4), dtype=torch.bfloat16)
        """
    )
    assert {hazard.allocation.dtype for hazard in analyse(text, PATH).hazards} == {"float16", "bfloat16"}


def test_inherited_methods_of_another_module_are_read() -> None:
    base = source()
    text = textwrap.dedent(
        """
        import torch
        from torch import nn
        from .layer import Layer as Base

        class Other(Base):
            def __init__(self, config):
                super(Base, self).__init__()
                self.dt_bias = nn.Parameter(torch.ones(4))
                self.buf = torch.empty((1, 4), dtype=torch.float16)
        """
    )
    other = "vllm/model_executor/models/other.py"
    assert analyse(text, other).hazards == ()
    own = textwrap.dedent(
        """
        import torch
        from .layer import Layer

        class Other(Layer):
            def forward_xpu(self, hidden_states, output):
                out = torch.empty((1, 4), dtype=torch.float16)
                torch.ops._xpu_C.gdn_attention(out, self.dt_bias)
        """
    )
    assert only(analyse(own, other, {PATH: ast.parse(base)}.get)).parameter == "self.dt_bias"
    hazard = only(analyse(text, other, {PATH: ast.parse(base)}.get))
    assert (hazard.cls, hazard.uses[0].path, hazard.uses[0].method) == ("Other", PATH, "Layer.forward_xpu")


def test_a_buffer_is_followed_into_another_layer() -> None:
    text = source(made="self.buf = None", taken="hidden_states") + textwrap.dedent(
        """
        class Block(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.layer = Layer(config)
                self.x = torch.empty((1, 4), dtype=torch.float16)

            def forward(self, hidden_states):
                if hidden_states.size(0) == 1:
                    inner = self.layer
                    inner.forward_xpu(self.x, hidden_states)
        """
    )
    uses = only(analyse(text, PATH)).uses
    taken = {(use.method, use.function, use.branch) for use in uses}
    assert ("Block.forward", "Layer.forward_xpu", "hidden_states.size(0) == 1") in taken


def test_a_module_that_calls_itself_comes_to_an_end() -> None:
    helper = "def again(self, x):\n    self.again(x)\n    return self.again(self.again(x))"
    assert only(found(helpers=helper, before="self.again(hidden_states)"))


def test_the_order_of_findings_is_always_the_same() -> None:
    made = "\n".join(f"self.b{n} = torch.empty((64, 4), dtype=torch.float16)" for n in range(9))
    call = f"torch.ops._xpu_C.gdn_attention({', '.join(f'self.b{n}' for n in range(9))}, self.dt_bias)"
    targets = [hazard.allocation.target for hazard in found(made=made, call=call).hazards]
    assert targets == [f"self.b{n}" for n in range(9)]


def test_what_is_no_python_is_said() -> None:
    with pytest.raises(IntegrityError, match=PATH):
        analyse("class Layer(nn.Module:\n", PATH)


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        (source(), True),
        (source().replace("torch.float16", "torch.float32").replace("float16 as f16", "float32"), False),
        (source(made="assert config.dtype in (torch.float16, torch.bfloat16)").replace("float16 as f16", "nn"), False),
        (source(made="assert config.dtype == torch.float16").replace("float16 as f16", "nn"), False),
        ("from custom_esimd_kernels_vllm import esimd_gemm\nclass A(B):\n    pass\n", True),
        (source().replace("torch.ops._xpu_C.", "plain.").replace("from torch import float16 as f16", ""), False),
    ],
)
def test_bytes_tell_what_is_worth_parsing(text: str, worth: bool) -> None:
    assert worth_parsing(text.encode(), PATH) is worth


def test_only_modules_of_torch_are_worth_parsing_outside_models() -> None:
    elsewhere = "vllm/v1/attention/backends/some.py"
    assert worth_parsing(source().encode(), elsewhere)
    assert not worth_parsing(source().replace("(nn.Module)", "(Backend)").encode(), elsewhere)


BUFFER = "self.buf = torch.empty((64, 4), dtype={})"
CHOICES = {
    "a branch": f"if config.dtype == torch.float16:\n    {BUFFER.format('torch.float16')}",
    "either branch": f"""
        if config.dtype == torch.bfloat16:
            {BUFFER.format("torch.bfloat16")}
        else:
            {BUFFER.format("torch.float16")}
    """,
    "an expression": BUFFER.format("torch.half if config.dtype == torch.float16 else torch.bfloat16"),
    "a name": f"how = torch.bfloat16 if config.dtype == torch.bfloat16 else f16\n{BUFFER.format('how')}",
    "a mapping": BUFFER.format("{'float16': f16, 'bfloat16': torch.bfloat16}[config.torch_dtype]"),
}


@pytest.mark.parametrize("way", CHOICES)
def test_a_dtype_that_is_chosen_by_the_models_is_none_that_is_spelled_out(way: str) -> None:
    assert found(made=CHOICES[way]).hazards == ()


@pytest.mark.parametrize(
    "made",
    [
        f"if config.kv_cache_dtype == torch.float16:\n    {BUFFER.format('torch.float16')}",
        f"if config.dtype == torch.float16:\n    {BUFFER.format('torch.bfloat16')}",
        f"if config.dtype != torch.float16:\n    {BUFFER.format('torch.float16')}",
        BUFFER.format("f16 if config.wide else torch.bfloat16"),
        BUFFER.format("{'a': f16, 'b': torch.bfloat16}[config.kind]"),
    ],
)
def test_a_dtype_that_is_chosen_by_something_else_is_spelled_out(made: str) -> None:
    assert found(made=made).hazards


FIELDS = "\nclass Held{}:\n    other: int\n    buf: torch.Tensor\n"
KEPT = "\nclass Held:\n    def __init__(self, other, buf):\n        self.buf = buf\n"


@pytest.mark.parametrize(
    ("top", "given"),
    [
        ("from dataclasses import dataclass\n\n@dataclass" + FIELDS.format(""), "1, {}"),
        ("from typing import NamedTuple\n" + FIELDS.format("(NamedTuple)"), "1, buf={}"),
        (KEPT, "1, {}"),
        (KEPT, "buf={}, other=1"),
    ],
)
def test_a_buffer_in_an_object_is_followed(top: str, given: str) -> None:
    made = "self.held = Held({})"
    hazard = only(
        found(top=top, made=made.format(given.format(MADE.partition("= ")[2])), taken="self.held.buf[:tokens]")
    )
    assert (hazard.cls, hazard.allocation.target) == ("Held", "self.buf")
    other = made.format(given.format("torch.empty(4, dtype=config.dtype)"))
    assert found(top=top, made=other, taken="self.held.buf[:tokens]").hazards == ()
