"""Reads profiles.toml: which cases a profile promises, on which servers, within which limits."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "profiles.toml"

SILENT = frozenset({"ready", "models", "log", "end"})
"""Cases for which a server need not answer a single prompt."""


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share one server."""

    name: str
    model: str
    dtype: str
    flags: tuple[str, ...]
    cases: tuple[str, ...]
    quantization: str
    """What the weights are quantised to while they are loaded; empty: nothing."""
    environment: Mapping[str, str]
    """Set in the group's server, over the platform's own."""
    read_only: bool
    """Whether an image's root file system is read-only in this group."""
    not_supported: Mapping[str, str]
    """Reason by case, for the cases that the base cannot do on this platform."""

    @property
    def tolerance(self) -> str:
        """Return the key of the golden file's tolerances."""
        return f"{self.dtype}-{self.quantization}" if self.quantization else self.dtype


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that each wait may last."""

    ready: float
    request: float
    case: float
    end: float
    stacks: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One profile on one platform and base."""

    profile: str
    groups: tuple[Group, ...]
    limits: Limits
    device: str
    environment: Mapping[str, str]


class PlanError(ValueError):
    """A word of the command line is not in profiles.toml."""


def read(path: Path = PATH) -> dict[str, Any]:
    """Return the parsed file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def plan(data: Mapping[str, Any], profile: str, platform: str, base: str) -> Plan:
    """Return what a profile asks for on a platform and a base (empty when the base is not known)."""
    if profile not in data["profiles"]:
        raise PlanError(f"there is no profile {profile!r}; profiles.toml has: {', '.join(data['profiles'])}")
    if platform not in data["platforms"]:
        raise PlanError(f"there is no platform {platform!r}; profiles.toml has: {', '.join(data['platforms'])}")
    row = data["platforms"][platform]
    shared = (*data["server"]["flags"], *row.get("flags", ()))
    groups = tuple(
        Group(
            name=entry["name"],
            model=entry["model"],
            dtype=entry["dtype"],
            flags=(*shared, "--dtype", entry["dtype"], *quantized(entry), *entry.get("flags", ())),
            cases=answering(entry),
            quantization=entry.get("quantization", ""),
            environment={**row.get("environment", {}), **entry.get("environment", {})},
            read_only=bool(entry.get("read_only", False)),
            not_supported=refusals(data, entry, platform, base),
        )
        for raw in data["profiles"][profile]["groups"]
        for entry in spread(raw)
    )
    limits = Limits(**{name: float(value) for name, value in data["limits"].items()})
    return Plan(profile, groups, limits, row["device"], row.get("environment", {}))


def spread(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the groups of one entry: itself, or one a model and first case."""
    if "first" not in entry:
        yield dict(entry)
        return
    for model in entry["models"]:
        for case in entry["first"]:
            words = {"model": model, "case": case}
            yield {
                **{key: value for key, value in entry.items() if key not in ("models", "first")},
                "name": entry["name"].format(**words),
                "model": model,
                "cases": [name.format(**words) for name in entry["cases"]],
            }


def quantized(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the flags that quantise the weights while they are loaded."""
    return ("--quantization", entry["quantization"]) if "quantization" in entry else ()


def answering(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a group's cases; one of them has to want an answer: a server that says *ready* may die at the first."""
    if set(entry["cases"]) <= SILENT:
        named = ", ".join(entry["cases"]) or "no case"
        raise PlanError(f"the group {entry['name']} asks nothing of its server: {named}")
    return tuple(entry["cases"])


def refusals(data: Mapping[str, Any], entry: Mapping[str, Any], platform: str, base: str) -> dict[str, str]:
    """Return the reason by case for the cases of a group that are declared as not supported."""
    found: dict[str, str] = {}
    for rule in data.get("not_supported", ()):
        if (
            base in rule["bases"]
            and platform in rule["platforms"]
            and entry["model"] in rule["models"]
            and entry["name"] in rule.get("groups", (entry["name"],))
        ):
            hit = entry["cases"] if "*" in rule["cases"] else [c for c in entry["cases"] if c in rule["cases"]]
            found.update(dict.fromkeys(hit, rule["reason"]))
    return found
