"""What gdn-dtype says of a layer in the shape of the downstream file, and what it is to trees without the defect."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.model.errors import IntegrityError
from seatrial.model.fixes import Finding, VerdictKind
from seatrial.model.series import LoadedFix
from seatrial.model.verdict import judge
from seatrial.stages.check import check
from seatrial.stages.fix_files import load_series
from tests.fixlab import MemoryTree, write_tree

ROOT = Path(__file__).parents[2]
DOWNSTREAM = (ROOT / "tests" / "downstream" / "qwen3_next_xpu.py").read_text()
LAYER = "vllm/model_executor/models/qwen3_next.py"
BUFFER, FUSED = "scratch-dtype", "fused-float16"
ONE, MANY = "forward_xpu_with_precomputed_proj", "forward_xpu_batched_precomputed_proj"
HELD = [
    "conv_bias_zeros",
    *(f"_decode_{name}" for name in ("qkvz_buf", "ba_buf", "attn_out_buf", "z_buf", "outproj_buf")),
    *(f"_m_{name}" for name in ("qkvz", "ba", "attn_out", "z", "outproj")),
]
"""Attributes of the fixture that are float16 in every model."""
MADE_IN_FORWARD = ["projected_states_qkvz", "projected_states_ba", "out_buf", "core_attn_out", "out_buf"]


def tree(source: str = DOWNSTREAM, **more: str) -> MemoryTree:
    """Return a tree that holds a layer."""
    return MemoryTree({"vllm/__init__.py": "", LAYER: source} | more)


@pytest.fixture(scope="module")
def fix() -> LoadedFix:
    """Return the fix as the series holds it."""
    return load_series(ROOT / "patches").fixes["gdn-dtype"]


@pytest.fixture(scope="module")
def findings(fix: LoadedFix) -> tuple[Finding, ...]:
    """Return what is found in the fixture."""
    return fix.examine(tree()).findings


def about(findings: tuple[Finding, ...], name: str) -> str:
    """Return the message about an attribute."""
    (message,) = [found.message for found in findings if f": self.{name} is " in found.message]
    return message


def test_every_buffer_is_named_where_it_is_allocated(findings: tuple[Finding, ...]) -> None:
    lines = DOWNSTREAM.splitlines()
    buffers = [found for found in findings if found.part == BUFFER]
    assert len(buffers) == len(HELD) + len(MADE_IN_FORWARD)
    for name in HELD:
        (found,) = [found for found in buffers if f": self.{name} is " in found.message]
        assert f"self.{name} = torch." in lines[found.line - 1]
    local = [found for found in buffers if ": self." not in found.message]
    assert sorted(found.message.split(": ")[1].split(" of ")[0] for found in local) == sorted(MADE_IN_FORWARD)
    assert all("= torch.empty(" in lines[found.line - 1] for found in local)


def test_methods_branches_and_kernels_are_named(findings: tuple[Finding, ...]) -> None:
    lines = DOWNSTREAM.splitlines()
    message = about(findings, "_m_attn_out")
    assert "is float16 in every model and goes to kernels beside self.dt_bias" in message
    first, second = message.split(": ", 2)[2].split("; ")
    assert first.startswith("forward_xpu where num_tokens <= self._max_bsz (line ")
    assert second.startswith(f"{MANY} where num_tokens <= self._max_bsz (line ")
    for place in (first, second):
        assert "if num_tokens <= self._max_bsz:" in lines[int(place.split("(line ")[1].split(")")[0]) - 1]
        called = place.split("torch.ops._xpu_C.gdn_attention (")[1].split(")")[0]
        assert "torch.ops._xpu_C.gdn_attention(" in lines[int(called) - 1]
    one = about(findings, "_decode_attn_out_buf")
    assert "forward_xpu where is_decode (line " in one
    assert f"{ONE} where not self._esimd (line " in one
    assert "num_tokens" not in one


def test_fused_calls_are_found_where_they_stand(findings: tuple[Finding, ...]) -> None:
    lines = DOWNSTREAM.splitlines()
    fused = [found for found in findings if found.part == FUSED]
    assert len(fused) == sum(line.strip().startswith("esimd_") and "(" in line for line in lines)
    assert all(lines[found.line - 1].strip().startswith("esimd_") for found in fused)


def test_what_follows_the_activations_is_not_named(findings: tuple[Finding, ...]) -> None:
    text = "dtype=hidden_states.dtype"
    assert text in DOWNSTREAM
    lines = [number for number, line in enumerate(DOWNSTREAM.splitlines(), 1) if text in line]
    assert not any(found.line in range(line - 3, line + 2) for line in lines for found in findings)


def test_renamed_and_reordered_is_the_same(fix: LoadedFix) -> None:
    renamed = DOWNSTREAM
    for old, new in (("_decode_", "_one_"), ("_m_", "_few_"), ("core_attn_out", "mixed"), ("dt_bias", "time_bias")):
        renamed = renamed.replace(old, new)
    renamed = renamed.replace("dtype=torch.float16, device=device", "device=device, dtype=KIND")
    renamed = renamed.replace("\nSMALL = 64\n", "\nSMALL = 64\nKIND = torch.half\n")
    seen, before = fix.examine(tree(renamed)).findings, fix.examine(tree()).findings
    assert [found.part for found in seen] == [found.part for found in before]
    assert [found.line for found in seen] == [found.line + 1 for found in before]


def test_verdicts(fix: LoadedFix) -> None:
    def kind(files: MemoryTree) -> VerdictKind:
        return judge(fix, "0.28.0", fix.examine(files), None, {}).kind

    assert kind(MemoryTree({"vllm/__init__.py": ""})) is VerdictKind.NOT_PRESENT
    mended = [
        "import torch",
        "class Layer(torch.nn.Module):",
        " def forward(self, x):",
        "  gdn_attention(x, self.dt_bias)",
    ]
    assert kind(tree("\n".join(mended))) is VerdictKind.UPSTREAM
    verdict = judge(fix, "0.28.0", fix.examine(tree()), None, {})
    assert verdict.kind is VerdictKind.DRIFT
    assert "seatrial repair gdn-dtype" in verdict.reason
    assert kind(tree(DOWNSTREAM.replace("esimd_", "plain_").replace("custom_plain_", "vllm_"))) is VerdictKind.PARTLY


def test_check_names_the_repair(tmp_path: Path) -> None:
    write_tree(tmp_path, tree().files)
    checked = check(tmp_path, load_series(ROOT / "patches"))
    assert {found.fix for found in checked.findings} == {"gdn-dtype"}
    assert checked.cures["gdn-dtype"].endswith("(seatrial repair gdn-dtype TREE)")


def test_a_file_that_is_no_python_is_named(fix: LoadedFix) -> None:
    with pytest.raises(IntegrityError, match=LAYER):
        fix.examine(tree(DOWNSTREAM + "\nclass Broken(:\n"))
