"""Ways to break an image that several faults share: each returns a function that changes a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.faults.derive import Layer

Seed = Callable[[Layer], None]

SITE = "/opt/vllm/lib/python3.11/site-packages"
SYSTEM = "/usr/lib/x86_64-linux-gnu"
STDLIB = "/usr/lib/python3.11"


def gone(*paths: str) -> Seed:
    """Take files, links or folders away."""

    def seed(layer: Layer) -> None:
        for path in paths:
            layer.remove(path)

    return seed


def library_gone(soname: str) -> Seed:
    """Take a system library away: the link and the file behind it."""

    def seed(layer: Layer) -> None:
        for path in {layer.real(f"{SYSTEM}/{soname}"), layer.must(f"{SYSTEM}/{soname}")}:
            layer.remove(path)

    return seed


def moved(path: str, to: str) -> Seed:
    """Put a file elsewhere."""
    return lambda layer: layer.move(path, to)


def written(path: str, data: bytes | str = "left behind\n", mode: int = 0o644) -> Seed:
    """Write a file."""
    return lambda layer: layer.put(path, data, mode=mode)


def mode(path: str, bits: int) -> Seed:
    """Give a file or folder another mode."""
    return lambda layer: layer.mode(path, bits)


def env(name: str, value: str | None) -> Seed:
    """Set a variable, or (None) take it away."""
    return lambda layer: layer.env(name, value)


def label(name: str, value: str | None) -> Seed:
    """Set a label, or (None) take it away."""
    return lambda layer: layer.label(name, value)


def setting(name: str, value: Any) -> Seed:
    """Change one setting of the image's configuration."""

    def seed(layer: Layer) -> None:
        layer.settings[name] = value

    return seed


def step(line: str) -> Seed:
    """Add a step to the history."""
    return lambda layer: layer.config.setdefault("history", []).append({"created_by": line, "empty_layer": True})


def native(name: str, change: Callable[[bytes], bytes]) -> Seed:
    """Change a native file below the site folder, with its RECORD: it is so in its wheel."""
    return lambda layer: layer.installed(name, change(layer.read(f"{SITE}/{name}")))


def not_in_wheel(*names: str) -> Seed:
    """Take installed files away, with their lines in RECORD: the wheel never had them."""

    def seed(layer: Layer) -> None:
        for name in names:
            layer.installed(name, None)

    return seed


def uninstalled(name: str) -> Seed:
    """Take a distribution away, files and metadata."""

    def seed(layer: Layer) -> None:
        one = layer.python.named(name)
        if one is None:
            raise LookupError(f"{name} is not installed")
        for path in {line.path for line in one.record}:
            if path in layer.root.entries and not path.startswith(f"{one.info}/"):
                layer.remove(path)
        layer.remove(one.info)

    return seed


def metadata(distribution: str, old: str, new: str) -> Seed:
    """Change METADATA, with its RECORD."""
    return lambda layer: layer.metadata(distribution, old, new)


def other_version(name: str, version: str) -> Seed:
    """Let a distribution be another version by its own metadata, as one that was resolved on another day is."""

    def seed(layer: Layer) -> None:
        one = layer.python.named(name)
        if one is None:
            raise LookupError(f"{name} is not installed")
        layer.metadata(name, f"\nVersion: {one.version}\n", f"\nVersion: {version}\n")

    return seed


def second_owner(name: str, version: str, file: str, data: bytes) -> Seed:
    """Install a second distribution that claims a file which is there already, with other bytes."""

    def seed(layer: Layer) -> None:
        import base64
        import hashlib

        info = f"{name.replace('-', '_')}-{version}.dist-info"
        told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        layer.put(f"{SITE}/{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        layer.put(f"{SITE}/{info}/RECORD", f"{file},sha256={told},{len(data)}\n{info}/RECORD,,\n")
        layer.put(f"{SITE}/{file}", data)

    return seed


def both(*seeds: Seed) -> Seed:
    """Do several things that are one fault together."""

    def seed(layer: Layer) -> None:
        for each in seeds:
            each(layer)

    return seed
