"""Tell kernels, torch's allocators and dtype-keeping functions from other callables by their dotted names."""

from __future__ import annotations

import sys

# fmt: off
ALLOCATORS = frozenset({
    "empty", "zeros", "ones", "full", "empty_strided", "rand", "randn", "empty_like", "zeros_like", "ones_like",
    "full_like", "rand_like", "randn_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor",
    "new_empty_strided", "tensor", "scalar_tensor", "arange", "eye",
})
KEEPERS = frozenset({
    "view", "reshape", "contiguous", "clone", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "expand",
    "expand_as", "view_as", "reshape_as", "narrow", "select", "index_select", "detach", "t", "repeat", "swapdims",
    "repeat_interleave", "unflatten", "movedim", "swapaxes", "as_strided", "cuda", "cpu", "xpu", "pin_memory", "roll",
    "chunk", "split", "unbind", "tensor_split", "hsplit", "vsplit", "cat", "stack", "concat", "rearrange", "flip",
    "pad", "ravel", "diagonal", "masked_fill", "broadcast_to", "adjoint", "share_memory_", "requires_grad_", "zero_",
    "fill_", "copy_", "mul_", "add_", "div_", "sub_", "resize_", "squeeze_", "unsqueeze_", "masked_fill_",
    "index_copy_", "normal_", "uniform_",
})
# fmt: on
"""Methods and functions whose result has the dtype, mostly even the memory, of the tensor that they are given."""
CASTS = {
    "half": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
}
"""Methods that change the dtype, and to what."""
HARMLESS = sys.stdlib_module_names | {
    "torch", "vllm", "numpy", "einops", "transformers", "torchvision", "PIL", "pydantic", "huggingface_hub", "psutil",
    "regex", "tqdm", "packaging", "cv2", "scipy", "safetensors", "timm", "typing_extensions", "triton",
}  # fmt: skip
"""Top-level packages whose functions are no kernels, or only below the names in OPS."""
OPS = frozenset(
    {"_custom_ops", "_xpu_ops", "_aiter_ops", "_ipex_ops", "_C", "ops", "kernels", "flashinfer", "deep_gemm"}
)
"""Parts of vLLM's dotted names below which kernels and their wrappers lie."""
FUSED_WORD = "esimd"
"""Stands in the name of every kernel of the vendor's that takes float16 alone, or in that of its package."""


def is_kernel(ref: str) -> bool:
    """Tell whether a dotted name is that of a kernel, or of the thin wrapper of one."""
    parts = ref.split(".")
    if len(parts) < 2 or (not parts[-1][:1].islower() and parts[-1][:1] != "_"):
        return False
    if ref.startswith("torch.ops."):
        return len(parts) > 3
    if parts[0] == "vllm":
        return not OPS.isdisjoint(parts[1:-1])
    return parts[0] not in HARMLESS or "_C" in parts


def takes_float16_alone(ref: str) -> bool:
    """Tell the vendor's fused kernels, which read every activation as float16."""
    return FUSED_WORD in ref.lower()
