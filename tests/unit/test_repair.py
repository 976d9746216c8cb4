"""Repairs of downstream sources: what is rewritten, what stays as it is, what is refused."""

from __future__ import annotations

import ast
import os
import stat
import textwrap
from pathlib import Path

import pytest

from seatrial.cli.main import main
from seatrial.flow.repair import plan_repair
from seatrial.model.errors import DiskError, FixError, IntegrityError, UsageError
from seatrial.model.scratch import analyse
from seatrial.stages.repair import prove, repair_tree, rewrite_source, write_tree
from seatrial.stages.repair import tree as repair_module
from seatrial.stages.repair.proof import differences

ROOT = Path(__file__).parents[2]
FIXTURE = (ROOT / "tests" / "downstream" / "qwen3_next_xpu.py").read_bytes()
PATH = "vllm/model_executor/models/layer.py"
LOADER = "vllm/model_executor/model_loader/base_loader.py"

HEAD = """
import torch
from torch import nn
from custom_esimd_kernels_vllm import esimd_gdn_conv_fused, esimd_gemv


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.in_proj = Linear(size)
        self.dt_bias = nn.Parameter(torch.ones(size))
        self.buffer = torch.empty(1, size, dtype=torch.float16)  # one token
"""
OPERATOR = """torch.ops._xpu_C.gdn_attention(
    out, z, qkvz, ba, 1, 1, 8, 8, conv_state=c, ssm_state=s, conv_weights=w, conv_bias=None,
    activation="silu", A_log=a, dt_bias=self.dt_bias, num_prefills=0, num_decodes=1)
"""
FUSED = "esimd_gdn_conv_fused(qkvz, ba, self.dt_bias, out, z)\n"


def layer(*methods: str) -> bytes:
    """Return a module with a layer that has these methods."""
    return (HEAD + "".join("\n" + textwrap.indent(method, "    ") for method in methods)).encode()


def forward(body: str, *, name: str = "forward", head: str = "out = self.buffer\nz = out\n") -> str:
    """Return a forward method with a body."""
    return f"def {name}(self, qkvz, ba, output):\n" + textwrap.indent(head + body, "    ")


def repaired(source: bytes, **more: bool) -> str:
    """Return a source after its repair, which must be proven."""
    one = prove(rewrite_source(source, PATH, **more))
    assert [str(refusal) for refusal in one.refusals] == []
    assert one.after != source
    return one.after.decode()


def refusals(source: bytes, **more: bool) -> list[str]:
    """Return what a repair refuses; it writes nothing then."""
    one = rewrite_source(source, PATH, **more)
    one = one if one.refusals else prove(one)
    assert one.after == one.before
    return [str(refusal) for refusal in one.refusals]


def branched(condition: str, *, more: str = "") -> str:
    """Return a body that takes the fused kernel under a condition, the operator else."""
    return f"{more}if {condition}:\n    {FUSED}else:\n" + textwrap.indent(OPERATOR, "    ")


def test_the_downstream_layer_is_clean_after_it_and_a_second_run_changes_nothing() -> None:
    text = repaired(FIXTURE)
    found = analyse(text, PATH)
    assert (found.hazards, found.fused) == ((), ())
    again = rewrite_source(text.encode(), PATH)
    assert (again.after, again.refusals) == (text.encode(), ())


def test_every_forward_of_the_downstream_layer_checks_dtypes_and_asks_for_float16() -> None:
    tree = ast.parse(repaired(FIXTURE))
    (cls,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("DeltaNet")]
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name.startswith("forward_xpu")]
    assert len(methods) == 3
    for method in methods:
        lines = ast.unparse(method)
        assert lines.count("gdn_attention wants one dtype: ") == 1
        assert "core_attn_out {core_attn_out.dtype}" in lines
        assert "dt_bias {self.dt_bias.dtype}" in lines
        assert ".dtype == torch.float16" in lines
    assert "torch.float16," not in ast.unparse(cls)


def test_formatting_and_comments_stay() -> None:
    before, after = FIXTURE.decode().splitlines(), repaired(FIXTURE).splitlines()
    assert [line for line in before if "#" in line] == [line for line in after if "#" in line]
    left = repaired(layer(forward(branched("self.fast"))).replace(b"\n", b"\r\n"))
    assert left.count("\r\n") == left.count("\n")
    assert "dtype=self.dt_bias.dtype)  # one token" in left


@pytest.mark.parametrize(
    "first",
    ["# one\x0c\x0b\x1cline\u2028\n", "\ufeff", "\ufeff# -*- coding: utf-8 -*-\n", "# coding: latin-1\n# caf\xe9\n"],
)
def test_encodings_and_odd_line_breaks_stay(first: str) -> None:
    encoding = "latin-1" if "latin" in first else "utf-8"
    source = layer(forward(branched("self.fast", more="say('\xe9'); y = torch.empty(2, dtype=torch.float16)\n")))
    source = source.replace(b"(qkvz, ba, self.dt_bias, out, z)", b"(qkvz, ba, self.dt_bias, out, y)")
    one = prove(rewrite_source((first + source.decode().lstrip("\n")).encode(encoding), PATH))
    assert [str(refusal) for refusal in one.refusals] == []
    text = one.after.decode(encoding)
    assert text.startswith(first)
    assert "say('\xe9'); y = torch.empty(2, dtype=qkvz.dtype)\n" in text
    assert text.count("gdn_attention wants one dtype: ") == 1
    again = rewrite_source(one.after, PATH)
    assert (again.after, again.refusals) == (one.after, ())


@pytest.mark.parametrize(
    ("condition", "guarded"),
    [
        ("self.fast", "if self.fast and qkvz.dtype == torch.float16:"),
        ("a or self.fast", "if (a or self.fast) and qkvz.dtype == torch.float16:"),
        ("a and self.fast", "if a and self.fast and qkvz.dtype == torch.float16:"),
        ("(a if b else c)", "if (a if b else c) and qkvz.dtype == torch.float16:"),
        ("not self.slow", "if not self.slow and qkvz.dtype == torch.float16:"),
    ],
)
def test_the_condition_of_a_fused_call_asks_for_float16(condition: str, guarded: str) -> None:
    assert guarded in repaired(layer(forward(branched(condition))))


@pytest.mark.parametrize(
    "rest",
    [
        "else:\n    pass\n",
        "else:\n    logger.warning('slow')\n    raise NotImplementedError\n",
        "    return\nraise NotImplementedError\n",
        "",
    ],
)
def test_a_way_that_does_nothing_is_no_way(rest: str) -> None:
    (said,) = refusals(layer(forward(f"if self.fast:\n    {FUSED}{rest}")))
    assert "has no way beside its float16 kernels" in said


def test_nothing_is_no_way_in_an_expression() -> None:
    (said,) = refusals(layer(forward(f"y = {FUSED.strip()} if self.fast else None\n")))
    assert "has no way beside its float16 kernels" in said


def test_an_early_return_is_guarded() -> None:
    text = repaired(layer(forward(f"if self.fast:\n    {FUSED}    return\n{OPERATOR}")))
    assert "if self.fast and qkvz.dtype == torch.float16:" in text


def test_a_conditional_expression_is_guarded() -> None:
    body = f"y = esimd_gemv(qkvz, self.buffer) if self.fast else self.in_proj(qkvz)\n{OPERATOR}"
    assert "if self.fast and qkvz.dtype == torch.float16 else self.in_proj(qkvz)" in repaired(layer(forward(body)))


def test_arms_are_guarded_one_by_one() -> None:
    body = f"if one:\n    {FUSED}elif two:\n    {FUSED}elif three:\n    z = out\nelse:\n    " + OPERATOR.replace(
        "\n", "\n    "
    )
    text = repaired(layer(forward(body)))
    assert "if one and qkvz.dtype == torch.float16:" in text
    assert "elif two and qkvz.dtype == torch.float16:" in text
    assert "elif three:" in text


def test_a_layout_that_is_made_for_the_fused_kernel_does_not_reach_the_operator() -> None:
    more = "if is_decode:\n    qkvz = qkvz[:, self.order]\nelse:\n    qkvz = qkvz[:, self.other]\n"
    text = repaired(layer(forward(branched("is_decode", more=more))))
    assert text.count("if is_decode and qkvz.dtype == torch.float16:") == 2
    chosen = "if is_decode:\n    out = self.buffer\nelse:\n    out = self.buffer[:2]\n"
    text = repaired(layer(forward(branched("is_decode", more=chosen))))
    assert text.count("if is_decode and qkvz.dtype == torch.float16:") == 1


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("if not is_decode:\n    qkvz = self.order(qkvz)", True),
        ("if n > 1:\n    qkvz = self.order(qkvz)", True),
        ("if is_decode:\n    pass\nelse:\n    self.order(qkvz)", True),
        ("qkvz = qkvz if is_decode else self.order(qkvz)", True),
        ("if not is_decode:\n    out = self.buffer[:n]", False),
        ("if not is_decode:\n    noise = self.order(ba)", False),
        ("if self.wide:\n    qkvz = self.order(qkvz)", False),
    ],
)
def test_what_is_made_for_the_operator_alone_is_not_left_out(more: str, refused: bool) -> None:
    body = f"n = qkvz.size(0)\nis_decode = n == 1\n{more}\n"
    for rest in (branched("is_decode"), f"if is_decode:\n    {FUSED}    return\n{OPERATOR}"):
        source = layer(forward(body + rest))
        if refused:
            assert any("is made here" in said for said in refusals(source))
        else:
            assert repaired(source).count("is_decode and qkvz.dtype == torch.float16:") == 1


def test_a_layout_before_an_early_return_does_not_reach_the_operator() -> None:
    body = f"if is_decode:\n    qkvz = qkvz[:, self.order]\nif is_decode:\n    {FUSED}    return\n{OPERATOR}"
    assert repaired(layer(forward(body))).count("if is_decode and qkvz.dtype == torch.float16:") == 2


def test_no_name_is_read_that_only_guarded_lines_bind() -> None:
    body = branched("is_decode").replace(FUSED, f"{FUSED}    took = now()\n")
    assert repaired(layer(forward(body + "if noisy and is_decode:\n    print(took)\n"))).count("== torch.float16:") == 2
    (said,) = refusals(layer(forward(body + "print(took)\n")))
    assert "took is read here" in said


PROJECTING = """def forward_all(self, hidden_states, output):
    out = self.buffer
    z = out
    if self.fast:
        qkvz = self.buffer
        esimd_gemv(hidden_states, qkvz)
        ba = qkvz
    else:
        raw, _ = self.in_proj_qkvz(hidden_states)
        ba, _ = self.in_proj_ba(hidden_states)
        qkvz = raw[:, self.order]
    n = hidden_states.size(0)
"""


def projecting(more: str = "") -> str:
    """Return a method that projects, then attends."""
    return PROJECTING + textwrap.indent(more + branched("self.fast"), "    ")


def test_a_method_with_fused_calls_alone_sends_other_dtypes_to_its_sibling() -> None:
    text = repaired(layer(projecting(), forward(FUSED, name="forward_projected")))
    assert "def forward_all(self, hidden_states, output, projected=None):" in text
    assert "raw, _ = self.in_proj_qkvz(hidden_states) if projected is None else (projected[0], None)" in text
    assert "ba, _ = self.in_proj_ba(hidden_states) if projected is None else (projected[1], None)" in text
    words = " ".join(text.partition("if qkvz.dtype != torch.float16:")[2].split())
    assert words.startswith(
        "return self.forward_all( hidden_states=qkvz, output=output, projected=(qkvz, ba), ) out = self.buffer"
    )


@pytest.mark.parametrize(
    ("sibling", "method", "why"),
    [
        (projecting(), forward(FUSED + "return output\n", name="forward_projected"), "one of the two returns a value"),
        (
            projecting() + "    return output\n",
            forward(FUSED, name="forward_projected"),
            "one of the two returns a value",
        ),
        ("async " + projecting(), forward(FUSED, name="forward_projected"), "one of the two is asynchronous"),
        (projecting(), "def forward_projected(self, qkvz, ba, out, z, output): " + FUSED, "stands on its first line"),
    ],
)
def test_a_sibling_that_answers_in_another_way_is_no_sibling(sibling: str, method: str, why: str) -> None:
    (said,) = refusals(layer(sibling, method))
    assert why in said


def test_a_sibling_that_looks_at_its_activations_is_no_sibling() -> None:
    (said,) = refusals(layer(projecting("ba = ba * hidden_states.sum()\n"), forward(FUSED, name="forward_projected")))
    assert "forward_projected has no way beside its float16 kernels" in said
    assert "takes more than rows and dtype of hidden_states" in said


def test_a_fused_call_with_nothing_beside_it_is_refused_with_its_line() -> None:
    source = layer(forward(FUSED))
    (said,) = refusals(source)
    line = source.decode().splitlines().index("        " + FUSED.strip()) + 1
    assert said.startswith(f"{PATH}:{line}: forward has no way beside its float16 kernels")


def test_an_allocation_in_a_forward_method_takes_the_activations_dtype() -> None:
    head = "out = torch.zeros(2, dtype=torch.float16)\nz = torch.empty(2).half()\n"
    text = repaired(layer(forward(branched("self.fast"), head=head)))
    assert "out = torch.zeros(2, dtype=qkvz.dtype)" in text
    assert "z = torch.empty(2).to(qkvz.dtype)" in text


@pytest.mark.parametrize(
    "first",
    [
        "positions",
        "input_ids: torch.Tensor",
        "kv_cache",
        "state_idx",
        "ssm_state",
        "x_fp8",
        "res: Tensor | None",
        "mask",
    ],
)
def test_the_dtype_of_what_is_no_activations_is_not_taken(first: str) -> None:
    method = forward(branched("self.fast", more=f"use({first.partition(':')[0]})\n"))
    method = method.replace("out = self.buffer", "out = torch.empty(2, dtype=torch.float16)")
    text = repaired(layer(method.replace("(self, ", f"(self, {first}, ")))
    assert "out = torch.empty(2, dtype=qkvz.dtype)" in text
    assert "if self.fast and qkvz.dtype == torch.float16:" in text


@pytest.mark.parametrize("name", ["forward_more", "buffers"])
def test_a_number_is_no_activations(name: str) -> None:
    given = "def {name}(self, n{kind}):\n    self.buffer = torch.empty(n, 2, dtype=torch.float16)\n    {use}\n"
    source = layer(forward(branched("self.fast"))).decode()
    source = source.replace("dtype=torch.float16)  # one token", "dtype=self.dt_bias.dtype)")
    (said,) = refusals((source + textwrap.indent(given.format(name=name, kind="", use="use(n)"), "    ")).encode())
    assert "is given no activations whose dtype it could take" in said
    tensor = given.replace("empty(n,", "empty(").replace("{use}", "use(n)")
    for kind, use in ((": torch.Tensor", "use(n)"), ("", "use(n, n.shape[0])")):
        method = textwrap.indent(tensor.replace("use(n)", use).format(name=name, kind=kind), "    ")
        assert "self.buffer = torch.empty( 2, dtype=n.dtype)" in repaired((source + method).encode())


@pytest.mark.parametrize(
    ("again", "refused"),
    [
        ("qkvz, scale = scaled_fp8_quant(qkvz)", True),
        ("qkvz = qkvz.float()", True),
        ("qkvz = other(ba)", True),
        ("qkvz = self.norm(qkvz) + ba.to(qkvz.dtype)", False),
        ("qkvz, ba = self.norm(qkvz, ba)", False),
    ],
)
def test_activations_that_may_have_another_dtype_by_then_are_not_asked(again: str, refused: bool) -> None:
    source = layer(forward(branched("self.fast", more=f"{again}\nz = torch.empty(2, dtype=torch.float16)\n")))
    if refused:
        assert any("may give qkvz another dtype" in said for said in refusals(source))
    else:
        assert "self.fast and qkvz.dtype == torch.float16:" in repaired(source)


def test_another_arm_does_not_change_what_is_asked() -> None:
    body = "if ba is None:\n    qkvz = other(ba)\n" + branched("self.fast").replace("if self", "elif self")
    assert "elif self.fast and qkvz.dtype == torch.float16:" in repaired(layer(forward(body)))


def test_the_default_dtype_is_not_taken_for_what_may_be_made_later() -> None:
    held = (
        "class Held:\n    def __init__(self):\n        self.out = torch.empty(2, dtype=torch.float16)\n\n\nclass Layer("
    )
    source = layer(forward(branched("self.fast", more="out = self.held.out\n"))).replace(b"class Layer(", held.encode())
    source = source.replace(b"        self.buffer =", b"        self.held = Held()\n        self.buffer =")
    (said,) = refusals(source, built_in_dtype=True)
    assert "Held may be made while no model is loaded" in said
    made = repaired(source.replace(b"class Held:", b"class Held(nn.Module):"), built_in_dtype=True)
    assert "self.out = torch.empty(2, dtype=torch.get_default_dtype())" in made


def test_a_dtype_that_is_held_in_a_name_is_not_changed_for_others() -> None:
    source = layer(forward(branched("self.fast"))).replace(b"dtype=torch.float16)", b"dtype=HALF)")
    text = repaired(source.replace(b"\n\n\nclass", b"\n\nHALF = torch.float16\n\n\nclass"))
    assert "HALF = torch.float16" in text
    assert "dtype=self.dt_bias.dtype)  # one token" in text


def test_init_falls_back_to_the_default_dtype_only_where_loaders_set_it() -> None:
    lines = HEAD.strip("\n").splitlines()
    lines[-2:] = [lines[-1], lines[-2]]
    source = layer(forward(branched("self.fast"))).replace(HEAD.strip("\n").encode(), "\n".join(lines).encode())
    assert "dtype=torch.get_default_dtype())  # one token" in repaired(source, built_in_dtype=True)
    (said,) = refusals(source)
    assert "self.buffer: no parameter in the model's dtype is made before this line" in said


def test_a_parameter_that_is_made_in_a_branch_is_not_relied_on() -> None:
    source = layer(forward(branched("self.fast")))
    made = b"        self.dt_bias = nn.Parameter(torch.ones(size))\n"
    assert made in source
    assert refusals(source.replace(made, b"        if size:\n    " + made))


def test_a_dtype_out_of_keywords_is_refused() -> None:
    made = b"self.buffer = torch.empty(1, size, dtype=torch.float16)"
    source = layer(forward(branched("self.fast")))
    shared = b"how = {'dtype': torch.float16}\n        self.buffer = torch.empty(1, size, **how)"
    (said,) = refusals(source.replace(made, shared))
    assert "keywords" in said


def test_an_operator_with_more_than_names_is_refused() -> None:
    source = layer(forward(branched("self.fast"))).replace(b"out, z, qkvz", b"out, z, self.order(qkvz)")
    (said,) = refusals(source)
    assert "gdn_attention is not given projected_states_qkvz as a plain name" in said


@pytest.mark.parametrize(
    "called",
    ["torch.ops._xpu_C.gdn_attention.default(", "(run := torch.ops._xpu_C.gdn_attention)(", "self.run("],
)
def test_an_operator_under_another_name_is_checked_as_well(called: str) -> None:
    source = layer(forward(branched("self.fast"))).replace(b"torch.ops._xpu_C.gdn_attention(", called.encode())
    held = b"        self.run = torch.ops._xpu_C.gdn_attention\n        self.buffer ="
    assert repaired(source.replace(b"        self.buffer =", held)).count("gdn_attention wants one dtype: ") == 1


def test_an_operator_in_a_choice_is_refused() -> None:
    call = " ".join(OPERATOR.split())
    (said,) = refusals(layer(forward(f"y = {FUSED.strip()} if self.fast else {call}\n")))
    assert "gdn_attention does not stand on a line of its own" in said


def test_the_custom_operator_that_runs_a_layer_is_another() -> None:
    text = repaired(layer(forward(branched("self.fast") + "torch.ops.vllm.gdn_attention(qkvz, out, self.prefix)\n")))
    assert text.count("gdn_attention wants one dtype: ") == 1


def test_what_was_repaired_before_stays_when_more_is_added() -> None:
    once = repaired(layer(forward(branched("self.fast")), projecting(), forward(FUSED, name="forward_projected")))
    more = once.replace(
        "        self.buffer =", "        self.more = torch.empty(3, dtype=torch.half)\n        self.buffer ="
    )
    more += "\n" + textwrap.indent(
        forward(branched("self.fast"), name="forward_more", head="out = z = self.more\n"), " " * 4
    )
    text = repaired(more.encode())
    assert text.count("gdn_attention wants one dtype: ") == 3
    assert "self.more = torch.empty(3, dtype=self.dt_bias.dtype)" in text
    guard = "if self.fast and qkvz.dtype == torch.float16:"
    assert guard in once
    assert list(differences(once, once.replace(guard, "if self.fast:"), "projected"))


def test_torch_by_another_name_is_refused() -> None:
    source = layer(forward(branched("self.fast"))).replace(b"import torch\n", b"import torch as th\n")
    (said,) = refusals(source.replace(b"torch.float16", b"th.float16").replace(b"torch.o", b"th.o"))
    assert "torch is not imported by its own name" in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if self.fast and qkvz.dtype == torch.float16:", "if self.slow and qkvz.dtype == torch.float16:"),
        ("        z = out\n", ""),
        ("num_decodes=1", "num_decodes=2"),
        ("torch.empty(1, size,", "torch.empty(2, size,"),
        ("qkvz.dtype == torch.float16", "qkvz.dtype == torch.bfloat16"),
    ],
)
def test_another_run_in_float16_is_seen(old: str, new: str) -> None:
    source = layer(forward(branched("self.fast")))
    text = repaired(source)
    assert old in text
    assert list(differences(source.decode(), text, "projected")) == []
    assert list(differences(source.decode(), text.replace(old, new), "projected"))


def tree(root: Path, source: bytes = FIXTURE, **more: bytes) -> Path:
    """Write a vLLM tree with a layer."""
    for path, data in {"vllm/__init__.py": b"", PATH: source, **more}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def bytes_of(root: Path) -> dict[str, bytes]:
    """Return every file of a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_verb_prints_the_change_writes_it_and_then_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path)
    (root / PATH).chmod(0o600)
    before = bytes_of(root)
    assert main(["repair", "gdn-dtype", str(root), "--dry-run"]) == 0
    assert bytes_of(root) == before
    assert "-            dtype=torch.float16," in capsys.readouterr().out
    assert main(["repair", "gdn-dtype", str(root)]) == 0
    said = capsys.readouterr().out
    assert f"+++ b/{PATH}" in said
    assert "1 files repaired" in said
    assert stat.S_IMODE((root / PATH).stat().st_mode) == 0o600
    after = bytes_of(root)
    assert after != before
    assert main(["repair", "gdn-dtype", str(root)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert bytes_of(root) == after


def test_one_place_that_cannot_be_repaired_leaves_every_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path, **{"vllm/model_executor/models/other.py": layer(forward(FUSED))})
    before = bytes_of(root)
    assert main(["repair", "gdn-dtype", str(root)]) == FixError.code
    assert bytes_of(root) == before
    said = capsys.readouterr()
    assert "vllm/model_executor/models/other.py:" in said.out
    assert "nothing was written" in said.out + said.err


def test_an_override_that_does_not_take_projected_states_is_refused(tmp_path: Path) -> None:
    source = layer(projecting(), forward(FUSED, name="forward_projected"))
    own = "vllm/model_executor/models/own.py"
    other = b"from .layer import Layer\n\n\nclass Own(Layer):\n    def forward_all(self, hidden_states, output): ...\n"
    kept = tree(tmp_path / "kept", source, **{own: other})
    (said,) = [refusal for one in repair_tree(kept) for refusal in one.refusals]
    assert str(said) == f"{own}:5: Own.forward_all overrides Layer.forward_all and does not take projected"
    fine = other.replace(b"output)", b"output, projected=None)")
    taken = tree(tmp_path / "taken", source, **{own: fine})
    assert [refusal for one in repair_tree(taken) for refusal in one.refusals] == []


def test_loaders_are_looked_at(tmp_path: Path) -> None:
    made = b"self.dt_bias = nn.Parameter(torch.ones(size))\n        "
    source = layer(forward(branched("self.fast"))).replace(b"        " + made, b"        ")
    source = source.replace(b"# one token\n", b"# one token\n        self.dt_bias = nn.Parameter(torch.ones(size))\n")
    assert [refusal for one in repair_tree(tree(tmp_path, source)) for refusal in one.refusals]
    tree(tmp_path, source, **{LOADER: b"with set_default_torch_dtype(model_config.dtype):\n    pass\n"})
    (one,) = repair_tree(tmp_path)
    assert b"torch.get_default_dtype()" in one.after


def test_what_is_no_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.whl").write_bytes(b"PK")
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "file.whl"):
        with pytest.raises(UsageError):
            repair_tree(path)
    assert main(["repair", "gdn-state-dtype", str(tree(tmp_path))]) == UsageError.code
    assert main(["repair", "gdn-dtype"]) == UsageError.code


def test_no_python_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=rf"{PATH}:{FIXTURE.count(10) + 1} is no valid Python"):
        repair_tree(tree(tmp_path, FIXTURE + b"def :\n"))


def test_bytes_in_another_encoding_than_said_are_refused(tmp_path: Path) -> None:
    root = tree(tmp_path, b"# caf\xe9\n" + FIXTURE)
    for verb in (["check", str(root)], ["repair", "gdn-dtype", str(root)]):
        assert main(verb) == IntegrityError.code


def test_a_patch_of_sources_with_cr_lf_is_for_keep_cr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, source, said in (
        ("lf", FIXTURE, "git am:"),
        ("cr", FIXTURE.replace(b"\n", b"\r\n"), "git am --keep-cr:"),
    ):
        root = tree(tmp_path / name, source)
        assert plan_repair("gdn-dtype", root)[0].taken_by + ":" == said
        assert main(["repair", "gdn-dtype", str(root), "--dry-run"]) == 0
        assert "\r" not in capsys.readouterr().out


def test_a_patch_takes_the_place_of_files_alone(tmp_path: Path) -> None:
    root = tree(tmp_path / "tree")
    before = bytes_of(root)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        assert main(["repair", "gdn-dtype", str(root), "--write-patch", str(path)]) == DiskError.code
    assert bytes_of(root) == before
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_read_only_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"vllm/model_executor/models/a.py": FIXTURE})
    found = repair_tree(root)
    (root / PATH).chmod(0o444)
    before = bytes_of(root)
    with pytest.raises(DiskError, match="read-only"):
        write_tree(root, found)
    assert bytes_of(root) == before


def test_a_write_that_fails_in_the_middle_brings_the_first_file_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, **{"vllm/model_executor/models/other.py": FIXTURE})
    before = bytes_of(root)
    found = repair_tree(root)
    write = repair_module.write_atomic

    def failing(path: Path, data: bytes, *, mode: int = 0o644) -> None:
        if path.name == "other.py":
            raise DiskError("no room")
        write(path, data, mode=mode)

    monkeypatch.setattr(repair_module, "write_atomic", failing)
    with pytest.raises(DiskError, match="no room"):
        write_tree(root, found)
    assert bytes_of(root) == before


def test_what_a_killed_run_leaves_is_repaired_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"vllm/model_executor/models/{name}.py" for name in ("a", "b", "c")]
    imports = (b"from .c import Layer as A\n", b"from vllm.model_executor.models.c import Layer as B\n", b"import os\n")
    root = tree(tmp_path, b"", **{name: line + FIXTURE for name, line in zip(names, imports, strict=True)})
    written: list[str] = []
    monkeypatch.setattr(repair_module, "write_atomic", lambda path, data, *, mode: written.append(path.name))
    write_tree(root, repair_tree(root))
    assert written == ["c.py", "a.py", "b.py"]


def test_a_tree_without_the_defect_has_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", "gdn-dtype", str(tree(tmp_path, b"import torch\n"))]) == 0
    assert "nothing to do" in capsys.readouterr().out
