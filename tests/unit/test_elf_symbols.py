"""Symbols of native files, C++ names, and the operators that vLLM's Python calls."""

from __future__ import annotations

import io

import pytest

from seatrial.ports.demangle import demangle
from seatrial.ports.elf import read_elf
from seatrial.ports.elf_symbols import symbol_key
from seatrial.stages.inspect.called import called_operators
from tests.imagemaker import C10, elf_bytes


def test_symbols_and_versions_are_read() -> None:
    data = elf_bytes(
        ["libc.so.6"], wants=["gone", C10], brings=["here"], asks=[("libc.so.6", "GLIBC_2.28")], defines=["OWN_1.0"]
    )
    elf = read_elf(io.BytesIO(data), len(data))
    assert not elf.broken
    assert elf.symbols is not None
    assert elf.symbols.wanted == ("gone", C10)
    assert elf.symbols.brought == {symbol_key("here")}
    assert elf.symbols.versions == {"OWN_1.0"}
    assert elf.versions == (("libc.so.6", "GLIBC_2.28"),)


def test_a_file_without_sections_has_no_symbols_and_is_not_broken() -> None:
    data = elf_bytes(["libc.so.6"])
    elf = read_elf(io.BytesIO(data), len(data))
    assert (elf.symbols, elf.broken) == (None, "")


@pytest.mark.parametrize(
    ("name", "text"),
    [(C10, "c10::Error::Error()"), ("malloc", "malloc"), ("_Znonsense", "_Znonsense"), ("_ZSt4cout", "std::cout")],
)
def test_names_are_shown_as_people_read_them(name: str, text: str) -> None:
    assert demangle(name) == text


WRAPPERS = "import torch\ndef one(x):\n    return torch.ops._C.one(x)\n"


def calls(path: str, text: str, device: str = "cpu") -> list[str]:
    return [use.operator for use in called_operators({"vllm/_custom_ops.py": WRAPPERS, path: text}, device)]


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("vllm/v1/cpu_attn.py", "torch.ops._C.x()", ["_C::x"]),
        ("vllm/v1/attn.py", "torch.ops._C.x()", []),
        (
            "vllm/layer.py",
            "def forward_cpu(): torch.ops._moe_C.x()\ndef forward_cuda(): torch.ops._C.y()",
            ["_moe_C::x"],
        ),
        (
            "vllm/layer.py",
            "if current_platform.is_cpu():\n    torch.ops._C.x()\nelse:\n    torch.ops._C.y()",
            ["_C::x"],
        ),
        ("vllm/layer.py", "if a and current_platform.is_cpu():\n    torch.ops._C.x()", ["_C::x"]),
        ("vllm/cpu_x.py", "if p.is_cuda_alike():\n    torch.ops._C.x()\nelse:\n    torch.ops._C.y()", ["_C::y"]),
        ("vllm/cpu_x.py", "def get_cuda_view_from_cpu(): torch.ops._C.x()", []),
        ("vllm/cpu_x.py", "from vllm import _custom_ops as ops\nops.one()", ["_C::one"]),
        ("vllm/cpu_x.py", "from vllm._custom_ops import one as uno\nuno()", ["_C::one"]),
        ("vllm/cpu_x.py", "torch.ops.vllm.python_registers_it()", []),
        ("vllm/cpu_x.py", "if hasattr(torch.ops._C, 'x'): torch.ops._C.x()", []),
        ("vllm/kv_offload/cpu_gpu.py", "torch.ops._C.swap()", []),
        ("vllm/cpu_x.py", "torch.ops._C.x( this is no python", []),
    ],
)
def test_only_what_code_for_the_device_calls_counts(path: str, text: str, found: list[str]) -> None:
    assert calls(path, text) == found


def test_each_device_has_its_own_code() -> None:
    text = "def forward_xpu(): torch.ops._xpu_C.gdn_attention()\ndef forward_cpu(): torch.ops._C.x()"
    assert calls("vllm/layer.py", text, "xpu") == ["_xpu_C::gdn_attention"]
