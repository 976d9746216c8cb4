"""Tell from a module's bytes whether it is worth parsing: whether anything at all could be found in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seatrial.model.scratch.kernels import FUSED_WORD, HARMLESS, OPS

_NAME = rb"(?:b?float16|half)\b"
_DTYPE = re.compile(rb"torch\.(?:float16|half|bfloat16)\b")
_BEFORE = (b"== ", b"!= ", b"is ", b"not ")
_AFTER = (b" ==", b" !=")
"""What stands beside a dtype that is compared with."""
_LISTED = re.compile(rb"(?:\bin\s*[\[(]|\[)\s*(?:torch\.\w+,?\s*)+[\])]")
"""Dtypes that are supported, or that something is held against."""
_OTHERWISE = re.compile(
    rb"[.](?:half|bfloat16)\(\)|getattr\(\s*torch,\s*[\"']" + _NAME + rb"|^from torch import[^\n]*\b" + _NAME,
    re.MULTILINE,
)
_ALLOCATED = re.compile(rb"\b(?:empty|zeros|ones|full|empty_strided|rand|randn|new_\w+|\w+_like)\b")
_HELD = re.compile(rb"Parameter\b|register_buffer|setattr|\bself\.\w+\s*(?::[^=\n]+)?=")
"""A parameter that could be met, or an attribute that could hold a buffer."""
_MODULE = re.compile(rb"^class [^\n]*\b(?:Module|CustomOp|PluggableLayer)\b", re.MULTILINE)
_MODELS = ("vllm/model_executor/models/", "vllm/models/")
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+\(?([^\n#]*)|import[ \t]+([\w.]+))", re.MULTILINE)


def worth_parsing(data: bytes, path: str) -> bool:
    """Tell whether a module could hold a buffer that meets a kernel, or a call of a kernel that takes float16 alone.

    Args:
        path: below the tree's root; models may take what makes a class a module from elsewhere.
    """
    fused = FUSED_WORD.encode() in data
    if not fused and b"float16" not in data and b"half" not in data:
        return False
    if not path.startswith(_MODELS) and not _MODULE.search(data):
        return False
    if fused:
        return True
    if not (_ALLOCATED.search(data) and _HELD.search(data) and _calls_kernels(data)):
        return False
    return next(_spelled(data), None) is not None


def spelled_lines(source: str) -> list[int]:
    """Return the lines on which a 16-bit dtype is spelled out and not merely compared with."""
    data = source.encode()
    return [data.count(b"\n", 0, place) + 1 for place in _spelled(data)]


def _spelled(data: bytes) -> Iterator[int]:
    listed = [found.span() for found in _LISTED.finditer(data)]
    for found in _DTYPE.finditer(data):
        if any(start < found.start() < end for start, end in listed):
            continue
        before, after = data[max(found.start() - 4, 0) : found.start()], data[found.end() : found.end() + 3]
        if not before.endswith(_BEFORE) and not after.startswith(_AFTER):
            yield found.start()
    if any(word in data for word in (b".half()", b".bfloat16()", b"from torch import", b"getattr(")):
        yield from (found.start() for found in _OTHERWISE.finditer(data))


def _calls_kernels(data: bytes) -> bool:
    if b"torch.ops." in data or b"torch.ops\n" in data or b"](" in data or b"out=" in data:
        return True
    for found in _IMPORT.finditer(data):
        module = (found[1] or found[3]).decode().split(".")
        names = set(re.split(r"[\s,]+", (found[2] or b"").decode(errors="replace")))
        if module[0] in ("", "vllm"):
            if not OPS.isdisjoint({*module, *names}):
                return True
        elif module[0] not in HARMLESS:
            return True
    return False
