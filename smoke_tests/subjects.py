"""What a run is about: an image, a virtual environment or a URL, bound to one digest."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from smoke_tests.image_server import Engine, ImageServer
from smoke_tests.servers import Server, SetupError, UrlServer
from smoke_tests.venv_server import VenvServer

BASE_LABEL = "org.seatrial.base.version"
"""Label by which an image says which base it was built from."""

FIXES_LABEL = "org.seatrial.fixes"
"""Label by which an image says which fixes are in it."""


@dataclass
class Subject:
    """The thing under trial."""

    kind: str
    digest: str
    base: str
    """Upstream release; empty when neither said nor found."""
    where: str
    environment: Mapping[str, str]
    """Set in every server, over the platform's own."""
    image: Any = None
    engine: Engine | None = None

    def facts(self) -> dict[str, str]:
        """Return what the subject says of itself, for the report."""
        found = {"as named": self.where}
        if self.image is not None and self.engine is not None:
            labels = self.image.labels or {}
            found["fixes"] = labels.get(FIXES_LABEL, "the image does not say")
            version = self.engine.client.version()
            found["engine"] = f"{version.get('Version', '')}, API {version.get('ApiVersion', '')}"
        if self.environment:
            found["set in every server"] = ", ".join(self.environment)
        return found

    def server(
        self,
        name: str,
        model: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        device: str,
        read_only: bool,
    ) -> Server:
        """Return a server, not yet started."""
        settings = {**environment, **self.environment}
        if self.kind == "url":
            return UrlServer(self.where)
        if self.kind == "venv":
            return VenvServer(name, Path(self.where), model, arguments, settings)
        assert self.engine is not None
        return ImageServer(
            name,
            self.engine,
            self.image,
            model,
            arguments=arguments,
            environment=settings,
            device=device,
            read_only=read_only,
        )


def image_subject(name: str, base: str, environment: Mapping[str, str]) -> Subject:
    """Return an image of the local engine; leftovers of dead runs are removed."""
    engine = Engine()
    engine.remove_leftovers()
    image = engine.image(name)
    found = base or (image.labels or {}).get(BASE_LABEL, "")
    return Subject("image", str(image.id), found, name, environment, image, engine)


def venv_subject(path: Path, base: str, environment: Mapping[str, str]) -> Subject:
    """Return a virtual environment; its digest is that of the RECORD of the vLLM inside."""
    root = path.resolve()
    places = [str(place) for place in sorted(root.glob("lib/python3*/site-packages"))]
    for found in importlib.metadata.distributions(name="vllm", path=places):
        record = found.read_text("RECORD") or ""
        digest = hashlib.sha256(record.encode()).hexdigest()
        return Subject("venv", f"sha256:{digest}", base or release(found.version), str(root), environment)
    raise SetupError(f"{root} holds no distribution named vllm")


def url_subject(url: str, base: str) -> Subject:
    """Return a server that runs already; its digest is that of its URL."""
    digest = hashlib.sha256(url.encode()).hexdigest()
    if not base:
        try:
            answer = httpx.get(f"{url.rstrip('/')}/version", timeout=10, trust_env=False)
            base = release(str(answer.json()["version"]))
        except (httpx.HTTPError, ValueError, KeyError):
            base = ""
    return Subject("url", f"sha256:{digest}", base, url, {})


def release(version: str) -> str:
    """Return the public part of a version."""
    return version.partition("+")[0]


def device_of(kind: str) -> dict[str, Any]:
    """Return the device of this machine that a platform needs.

    Raises:
        SetupError: this machine has none.
    """
    if kind == "cpu":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return {"kind": "cpu", "name": f"{names[0] if names else 'unknown'} x {max(1, len(names))}", "rehearsed": False}
    nodes = {"cuda": "/dev/nvidiactl", "rocm": "/dev/kfd", "xpu": "/dev/dri"}
    if not Path(nodes[kind]).exists():
        raise SetupError(f"this machine has no {kind} device ({nodes[kind]} is not there)")
    return {"kind": kind, "name": gpu_name(kind), "rehearsed": False}


def gpu_name(kind: str) -> str:
    """Return what the driver's own tool calls the first device; its kind where there is no tool."""
    tools = {"cuda": ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], "rocm": ["amd-smi", "list"]}
    if kind not in tools:
        return kind
    try:
        done = subprocess.run(tools[kind], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return kind
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else kind
