"""What the analysis says of a module: buffers, where they go, calls that take float16 alone."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

Form = Literal["argument", "method", "cast", "keywords"]
"""How an allocation gets its dtype: as an argument, by `.half()`, by `.to(dtype)`, or out of `**keywords`."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a source: lines count from 1, columns from 0 in bytes of UTF-8, as `ast` has them."""

    line: int
    column: int
    end_line: int
    end_column: int

    @classmethod
    def of(cls, node: ast.expr | ast.stmt | ast.keyword) -> Span:
        """Return the span of a node."""
        return cls(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A tensor that is allocated in a 16-bit dtype which the source spells out."""

    target: str
    """`self.NAME`, or the local name, that it is first held in; empty when it is used at once."""
    dtype: str
    """`float16` or `bfloat16`."""
    form: Form
    dtype_span: Span
    """The expression that hands the dtype over (a name, where it is held in one); of `.half()` the whole call."""
    literal_span: Span
    """Where the dtype itself is spelled."""
    call_span: Span
    """The allocating call; with `.half()` and `.to(dtype)` of the fresh tensor too."""
    function: str
    """`CLASS.METHOD`, or the function, that holds the call."""


@dataclass(frozen=True, slots=True)
class Use:
    """A kernel call that a buffer reaches."""

    method: str
    """The forward method that takes the buffer, by `CLASS.METHOD`."""
    branch: str
    """The condition under which the buffer is taken; empty when it always is."""
    branch_line: int
    """Line of that condition; of the call when there is none."""
    kernel: str
    """Full name of what is called, `torch.ops._xpu_C.gdn_attention` for one."""
    call: Span
    function: str
    """The function that holds the call."""
    path: str
    """The module that it stands in: another one where a method is inherited from there."""
    argument: str
    """The keyword, or the position from 0, that the buffer is given as."""
    parameter: str
    """What else the call takes in the model's dtype, `self.dt_bias` for one; empty when nothing is known."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """A buffer in a literal dtype, and the kernels where that meets the model's own."""

    cls: str
    allocation: Allocation
    uses: tuple[Use, ...]
    parameter: str
    """What it meets in the model's dtype, a parameter before activations; empty for `fused16`."""
    kind: Literal["mismatch", "fused16"]
    """`fused16`: it goes to kernels only that take float16 alone, and nothing beside it is known to differ."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A call of a kernel that takes float16 alone, reached by a model in any dtype."""

    cls: str
    method: str
    function: str
    kernel: str
    call: Span
    branch: str
    branch_line: int


@dataclass(frozen=True, slots=True)
class Unproven:
    """A place that the analysis cannot follow."""

    span: Span
    why: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that was found in one module."""

    path: str
    hazards: tuple[Hazard, ...]
    fused: tuple[Fused, ...]
    unproven: tuple[Unproven, ...]
    kernels: tuple[Use, ...] = ()
    """Every call of a kernel that takes a parameter of its class in the model's dtype, harmless ones too."""
