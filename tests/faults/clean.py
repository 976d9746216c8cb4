"""Good images of many kinds: rebuilt, renamed, with other layers, users and settings. The gate may refuse none."""

from __future__ import annotations

import posixpath
import secrets
import time
from dataclasses import dataclass

from seatrial.ports.engine import connect
from seatrial.ports.images import DockerImages
from seatrial.stages.inspect import inspect_image
from tests.faults.derive import Layer, derived
from tests.faults.good import Good
from tests.faults.judge import inspected, judged_by, quiet
from tests.faults.model import Judged, Outcome
from tests.faults.seeds import SITE, Seed, both, env, label, mode, setting, step, written

BASES = ("0.28.0", "0.15.1")


@dataclass(frozen=True, slots=True)
class Clean:
    """One good image."""

    name: str
    what: str
    seed: Seed | None = None
    """What it has beyond the named image; nothing: it is read whole, as it stands in the engine."""
    base: str = BASES[0]
    tag: str = ""
    """Another repository that it is given a name in, and asked for by."""
    ci: bool = True


def same_bytes(*names: str) -> Seed:
    """Write files again with the bytes that they have, as another order of layers would."""

    def seed(layer: Layer) -> None:
        for name in names:
            path = f"{SITE}/{name}"
            entry = layer.root.entries[layer.must(path)]
            layer.put(path, layer.read(path), mode=entry.mode)

    return seed


def whole_folder(folder: str) -> Seed:
    """Bring a whole folder in a layer of its own."""

    def seed(layer: Layer) -> None:
        for path, entry in layer.root.entries.items():
            if entry.kind == "file" and path.startswith(f"{SITE}/{folder}/"):
                layer.put(path, layer.read(path), mode=entry.mode)

    return seed


def without_bytecode(folder: str) -> Seed:
    """Take the bytecode of a package away: Python makes it anew in memory."""

    def seed(layer: Layer) -> None:
        folders = {posixpath.dirname(p) for p in layer.root.entries if p.startswith(f"{SITE}/{folder}/")}
        for each in sorted(folders):
            if posixpath.basename(each) == "__pycache__":
                layer.remove(each)

    return seed


def owned_by_user(layer: Layer) -> None:
    """Give vLLM's start files to the image's user."""
    for name in ("__init__.py", "envs.py", "version.py"):
        path = f"{SITE}/vllm/{name}"
        layer.put(path, layer.read(path), mode=0o644, uid=10001, gid=10001)


def nothing(layer: Layer) -> None:
    """Change nothing but the history."""
    layer.config["history"].append({"created_by": "RUN true", "empty_layer": True})


CLEAN: tuple[Clean, ...] = (
    Clean("as-built", "the named image, read whole"),
    Clean("as-built-old-base", "the named image of the other base, read whole", base=BASES[1], ci=False),
    Clean("renamed", "asked for by another name in another repository", tag="registry.example/team/serving:stable"),
    Clean(
        "rebuilt-later",
        "built again at another time",
        lambda layer: layer.config.update(created="2026-12-01T00:00:00Z"),
    ),
    Clean("empty-step", "a step that changes nothing", nothing),
    Clean(
        "other-layer-order",
        "files of vLLM in a later layer, with the same bytes",
        same_bytes("vllm/__init__.py", "vllm/envs.py"),
    ),
    Clean("own-layer", "a whole distribution in a layer of its own", whole_folder("uvicorn")),
    Clean("metadata-layer", "metadata in a later layer", same_bytes("vllm-0.28.0+cpu.st1.dist-info/METADATA")),
    Clean("other-user", "another user of group 0", setting("User", "4242:0")),
    Clean("user-by-name", "the user by name", setting("User", "vllm")),
    Clean("other-home", "HOME in a folder for temporary files", env("HOME", "/tmp")),
    Clean("other-folder", "another working folder", setting("WorkingDir", "/")),
    Clean(
        "more-labels",
        "labels of whoever runs it",
        both(label("org.example.team", "serving"), label("maintainer", "a team")),
    ),
    Clean(
        "more-variables",
        "a time zone and a level of logging",
        both(env("TZ", "UTC"), env("VLLM_LOGGING_LEVEL", "INFO")),
    ),
    Clean("switch-named-token", "a switch whose name speaks of tokens", env("VLLM_MAX_TOKENS_PER_STEP", "512")),
    Clean(
        "health-by-shell",
        "a health check that a shell runs",
        setting(
            "Healthcheck", {"Test": ["CMD-SHELL", "exec /opt/vllm/bin/python -I /usr/local/lib/vllm-healthcheck.py"]}
        ),
    ),
    Clean("no-bytecode", "without the bytecode of a package", without_bytecode("vllm/entrypoints")),
    Clean("owned-by-user", "code that belongs to the image's user", owned_by_user),
    Clean("notices", "a licence notice among the documents", written("/usr/share/doc/vllm/NOTICE", "Apache-2.0\n")),
    Clean(
        "own-authority",
        "a company's own certificate authority",
        written(
            "/usr/local/share/ca-certificates/site.crt",
            "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n",
        ),
    ),
    Clean("narrow-program", "a program that nobody may write", mode("/opt/vllm/bin/vllm", 0o555)),
    Clean("port", "another port in the documentation", setting("ExposedPorts", {"9000/tcp": {}})),
    Clean(
        "history",
        "a step with an argument that is no secret",
        step("RUN |1 SOURCE_DATE_EPOCH=1787961600 /bin/sh -c true"),
    ),
)
"""Those in CI are 20 and more; the other base takes a minute to read, and runs by night."""


def try_clean(clean: Clean, good: Good, *, full: bool) -> Outcome:
    """Run the gate on one good image; whatever it says is a false alarm."""
    begun = time.monotonic()
    try:
        judged = _judged(clean, good, full=full)
    except Exception as error:
        took = round(time.monotonic() - begun, 1)
        return Outcome(clean.name, True, (), "", took, error=f"{type(error).__name__}: {error}")
    said = judged.sentences[0] if judged.sentences else ""
    return Outcome(clean.name, bool(judged.by), judged.by, said, round(time.monotonic() - begun, 1), judged.digest)


def _judged(clean: Clean, good: Good, *, full: bool) -> Judged:
    client = connect()
    try:
        engine = DockerImages(client)
        if clean.seed is not None:
            layer = good.layer()
            clean.seed(layer)
            with derived(client, good.blobs, layer, clean.name) as (image, data):
                report = inspected(good, engine, image, layer, data, full=full, runs=True)
                return judged_by(good.decide(image, report), good)
        asked = good.digest
        if clean.tag:
            asked = f"seatrial-faults-{secrets.token_hex(4)}/{clean.tag}"
            client.api.tag(good.digest, asked.rpartition(":")[0], asked.rpartition(":")[2])
        try:
            report = inspect_image(asked, good.expected, engine, quiet())
        finally:
            if clean.tag:
                client.api.remove_image(asked, noprune=True)
        return judged_by(good.decide(good.digest, report), good)
    finally:
        client.close()
