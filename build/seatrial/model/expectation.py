"""What an inspection compares a finished image or wheel with."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
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
    records: dict[str, Sha256] = Field(default_factory=dict)
    """Distribution to `recorded_digest` of its wheel's RECORD."""
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


MADE_BY_INSTALLERS = (
    "INSTALLER",
    "REQUESTED",
    "RECORD",
    "RECORD.jws",
    "RECORD.p7s",
    "direct_url.json",
    "uv_cache.json",
)
"""Files of a dist-info folder that are not in the wheel, or not under the digest that it names."""


def recorded_digest(lines: Iterable[tuple[str, str]]) -> str:
    """Return one digest over the files that a RECORD lists, the same for a wheel and for what was installed from it.

    What goes beside the site folder (scripts, whose first line installers rewrite), bytecode and what installers add
    does not count.

    Args:
        lines: path as the RECORD has it, relative to the site folder, and its digest, `sha256=` left out.
    """
    counted: list[str] = []
    for path, digest in lines:
        top, _, rest = path.partition("/")
        if top.endswith(".data"):
            kind, _, path = rest.partition("/")  # noqa: PLW2901 - purelib and platlib land in the site folder
            if kind not in ("purelib", "platlib"):
                continue
        folder, _, name = path.rpartition("/")
        if folder.endswith(".dist-info") and name in MADE_BY_INSTALLERS:
            continue
        if not path.startswith(("../", "/")) and not path.endswith(".pyc") and digest:
            counted.append(f"{path},{digest}")
    return sha256("\n".join(sorted(counted)).encode()).hexdigest()
