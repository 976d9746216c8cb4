"""What an inspection compares a finished image or wheel with."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seatrial.model.values import Commit, Frozen, Identifier, Sha256


class Allowance(Frozen):
    """One thing that a check would report and that is meant to be so."""

    check: Identifier
    """Name of the check that asks for it."""
    pattern: str = Field(min_length=1)
    """Shell pattern over the subject that the check names: a path, `path -> soname`, `name: required name`."""
    why: str = Field(min_length=1)
    """The reason; it stands in the report beside what it excused."""


class Expectation(Frozen):
    """Everything that must be true of one build's image and of the wheel inside it.

    It is made from the locks and the patched tree, never from the image that it is compared with.
    """

    schema_id: Literal["seatrial.expectation/1"] = Field(default="seatrial.expectation/1", alias="schema")
    platform: Identifier
    device: str
    """What vLLM has to recognise where it is a CPU build: cpu, cuda, rocm or xpu."""
    machine: str
    """CPU architecture as `uname -m` prints it."""
    base: str
    commit: Commit
    """Commit of the base; checked where the image itself says one."""
    vllm_version: str
    """Version of the distribution `vllm`, with its local part."""
    distributions: dict[str, str] = Field(min_length=1)
    """Every distribution of the serving environment: normalised name to version; `vllm` is one of them."""
    patched: dict[str, Sha256]
    """Files that fixes changed or added: path as the wheel's RECORD has it, to SHA-256. Empty on an unpatched build."""
    removed: tuple[str, ...] = ()
    """Files that fixes removed, named in the same way."""
    labels: dict[str, str] = Field(min_length=1)
    """Labels that must have exactly this value."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that the platform's row sets."""
    entrypoint: tuple[str, ...] = Field(min_length=1)
    stop_signal: str = "SIGTERM"
    over_wheels_mb: int = Field(ge=0)
    """MB (10^6 bytes) that the image may hold beyond the files of its installed wheels."""
    operators: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Extension module (`vllm._C`) to the operators (`namespace::name`) that it registers; empty: not compared."""
    allowances: tuple[Allowance, ...] = ()
