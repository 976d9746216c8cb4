"""Which of a library's GPU code a device loads.

CUDA's rules (CUDA C++ Programming Guide, "Binary Compatibility" and "Compute Capability"): machine code for `sm_XY`
runs on devices of the same major version whose minor version is Y or higher; with the suffix `a` on exactly `sm_XY`;
with the suffix `f` on devices of its family, which share the major version, from Y on. The driver compiles PTX for its
own architecture and everything newer, with the same two suffixes meaning the same as above. Where machine code fits,
PTX is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from re import fullmatch


class CodeKind(StrEnum):
    """Machine code of one architecture, or an intermediate form that the driver compiles."""

    CUBIN = "cubin"
    PTX = "ptx"


@dataclass(frozen=True, slots=True)
class Arch:
    """A CUDA architecture: `sm_90` is number 90, `sm_90a` has the suffix `a`."""

    number: int
    suffix: str = ""

    @classmethod
    def parse(cls, name: str) -> Arch:
        """Read `sm_90a`, `compute_90a` or `90a`.

        Raises:
            ValueError: the name is none of a CUDA architecture.
        """
        found = fullmatch(r"(?:sm_|compute_)?(\d{2,3})([af]?)", name)
        if found is None:
            raise ValueError(f"{name!r} is no CUDA architecture; those are written like sm_80 or sm_90a")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        """Return the name as nvcc writes it, without its `sm_`."""
        return f"{self.number}{self.suffix}"


@dataclass(frozen=True, slots=True)
class GpuCode:
    """One entry of a fat binary.

    `offset` and `size` say where its bytes stand in the file; `removed` that they are zero.
    """

    kind: CodeKind
    arch: Arch
    offset: int
    size: int
    removed: bool = False


def runs(code: GpuCode, device: int) -> bool:
    """Tell whether a device (80, 90, ...) can run an entry."""
    arch = code.arch
    if arch.suffix == "a":
        return arch.number == device
    if code.kind is CodeKind.PTX and not arch.suffix:
        return arch.number <= device
    return arch.number // 10 == device // 10 and arch.number <= device


def needed(codes: Sequence[GpuCode], devices: Iterable[int]) -> tuple[GpuCode, ...]:
    """Return the entries of one fat binary that any of some devices would load, in the order given.

    For each device: the machine code that fits and is closest to it (suffixed and plain alike: which of two equally
    close ones is loaded is the driver's affair); where none fits, the newest PTX that the driver can compile.
    """
    kept: set[GpuCode] = set()
    for device in devices:
        fitting = [code for code in codes if not code.removed and runs(code, device)]
        for kind in (CodeKind.CUBIN, CodeKind.PTX):
            of_kind = [code for code in fitting if code.kind is kind]
            if of_kind:
                closest = max(code.arch.number for code in of_kind)
                kept |= {code for code in of_kind if code.arch.number == closest}
                break
    return tuple(code for code in codes if code in kept)
