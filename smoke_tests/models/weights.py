"""Deterministic weights and a safetensors writer, with the standard library alone.

A weight is one byte of a SHAKE-256 stream, mapped to one of 256 equally likely
values of a normal distribution and rounded to bfloat16. The stream is named by
model and tensor, so a tensor's bytes depend on neither the order of tensors nor
the version of a random generator.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import NormalDist


def bf16(value: float) -> bytes:
    """Return the two little-endian bytes of a value rounded to bfloat16, ties to even."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    bits += 0x7FFF + ((bits >> 16) & 1)
    return ((bits >> 16) & 0xFFFF).to_bytes(2, "little")


def bf16_value(raw: bytes) -> float:
    """Return the number that two little-endian bfloat16 bytes stand for."""
    return float(struct.unpack("<f", b"\0\0" + raw)[0])


_NORMAL = tuple(NormalDist().inv_cdf((step + 0.5) / 256) for step in range(256))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A bfloat16 tensor: shape and little-endian bytes in C order."""

    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        """Refuse bytes that do not fill the shape."""
        if len(self.data) != 2 * prod(self.shape):
            raise ValueError(f"{len(self.data)} bytes do not fill a bfloat16 tensor of shape {self.shape}")


def normal(seed: str, shape: Sequence[int], *, std: float, mean: float = 0.0) -> Tensor:
    """Return a tensor of 256-level normal values named by `seed`."""
    values = [bf16(mean + std * level) for level in _NORMAL]
    stream = hashlib.shake_256(seed.encode()).digest(prod(shape))
    data = bytearray(2 * len(stream))
    data[0::2] = stream.translate(bytes(value[0] for value in values))
    data[1::2] = stream.translate(bytes(value[1] for value in values))
    return Tensor(tuple(shape), bytes(data))


def with_rows(tensor: Tensor, row: Callable[[int, bytes], bytes]) -> Tensor:
    """Return a matrix whose rows went through `row(index, bytes)`."""
    count = tensor.shape[0]
    width = len(tensor.data) // count
    rows = (row(index, tensor.data[index * width : (index + 1) * width]) for index in range(count))
    return Tensor(tensor.shape, b"".join(rows))


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as one safetensors file, in order of their names, readable by every user.

    Source: the format's own description, https://github.com/huggingface/safetensors#format.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        end = at + len(tensor.data)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            stream.write(tensors[name].data)
    path.chmod(0o644)
