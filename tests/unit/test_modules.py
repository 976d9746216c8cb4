"""Reading a tree's modules for detectors."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from seatrial.model.errors import IntegrityError
from seatrial.model.modules import called, cpu_kernel_modules, function_line, modules, parse
from seatrial.model.series import LoadedFix
from tests.fixlab import MemoryTree, fix


def test_only_modules_with_the_word_below_the_folder_are_read() -> None:
    tree = MemoryTree(
        {
            "vllm/a.py": "word = 1\n",
            "vllm/b.py": "other = 1\n",
            "vllm/c.txt": "word",
            "tests/d.py": "word = 2\n",
            "vllm/platforms/e.py": "word = 3\n",
            "vllm/broken.py": "def (:\n",
        }
    )
    assert [source.path for source in modules(tree, "word")] == ["vllm/a.py", "vllm/platforms/e.py"]
    assert [source.path for source in modules(tree, "word", below="vllm/platforms/")] == ["vllm/platforms/e.py"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"x = 1\nword = (\n", "vllm/a.py:2 is no valid Python"),
        (b"word\0", "vllm/a.py"),
        (b"word = '\xff'", "vllm/a.py"),
    ],
)
def test_a_module_that_is_no_python_is_named(data: bytes, what: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse(data, "vllm/a.py")
    assert what in caught.value.what and caught.value.why and caught.value.do


def test_detectors_share_what_was_parsed() -> None:
    assert parse(b"x = 1\n", "vllm/a.py") is parse(b"x = 1\n", "vllm/b.py")


def test_small_questions() -> None:
    tree = ast.parse("import a\n\n\ndef run():\n    a.b.kernel_cpu(1)\n")
    assert function_line(tree, "run") == 4 and function_line(tree, "walk") == 0
    assert [called(node) for node in ast.walk(tree) if called(node)] == ["kernel_cpu"]


def test_a_wrapper_of_the_kernel_does_not_call_it() -> None:
    tree = MemoryTree(
        {
            "vllm/ops.py": "def rule_cpu(x):\n    return torch.ops._C.rule_cpu(x)\n",
            "vllm/layer.py": "def forward(x):\n    return ops.rule_cpu(x)\n",
            "vllm/gpu.py": "def forward(x):\n    return ops.rule(x)\n",
        }
    )
    assert [source.path for source in cpu_kernel_modules(tree, "rule")] == ["vllm/layer.py"]


def test_a_broken_module_is_blamed_on_the_tree_and_not_on_the_detector() -> None:
    detector = SimpleNamespace(subject=lambda tree: any(modules(tree, "word")), detect=lambda tree: [])
    with pytest.raises(IntegrityError, match=r"memory: vllm/a.py:2 is no valid Python"):
        LoadedFix(fix(), detector, {}).examine(MemoryTree({"vllm/a.py": "x = 1\nword = (\n"}))
