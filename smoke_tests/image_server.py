"""A server from an image: its own entrypoint, a random user, and a network with no way out."""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.types
import requests.exceptions

from smoke_tests.servers import Server, SetupError

LABEL = "seatrial.smoke.owner"
"""Label of everything that a run makes in the engine; its value names the process that made it."""

PORT = 8000
MODELS = "/models"
SHARED_MEMORY = "1g"
"""Size of /dev/shm; vLLM's processes exchange messages there, and the engine's own 64 MB are too few."""

API_LIMIT = 60
"""Seconds that one call of the engine's API may last."""

DEVICES: Mapping[str, Mapping[str, Any]] = {
    "cpu": {},
    "cuda": {"device_requests": [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])]},
    "rocm": {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]},
    "xpu": {"devices": ["/dev/dri"]},
}
"""What the engine must be told so that a container sees the device."""


def owner_of_this_process() -> str:
    """Return a name of this process that no other process of this machine has had since it booted."""
    return owner_name(os.getpid()) or f"{os.getpid()}"


def owner_name(pid: int) -> str | None:
    """Return pid namespace, process id and start time of a process, or None when it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return f"{Path('/proc/self/ns/pid').stat().st_ino}:{pid}:{stat[19]}"
    except OSError:
        return None


def abandoned(owner: str) -> bool:
    """Tell whether the process that a label names is dead; processes of other machines are not ours to judge."""
    parts = owner.split(":")
    if len(parts) != 3 or parts[0] != str(Path("/proc/self/ns/pid").stat().st_ino) or not parts[1].isdigit():
        return False
    return owner_name(int(parts[1])) != owner


class Engine:
    """The container engine, and what this run made in it."""

    def __init__(self) -> None:
        try:
            self.client = docker.from_env(timeout=API_LIMIT)
            self.client.ping()
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise SetupError(f"no container engine answers: {error}") from None

    def image(self, name: str) -> Any:
        """Return an image by digest or name."""
        try:
            return self.client.images.get(name)
        except docker.errors.ImageNotFound:
            raise SetupError(f"the engine has no image {name}") from None

    def remove_leftovers(self) -> int:
        """Remove containers and networks of runs that died; returns how many."""
        count = 0
        for container in self.client.containers.list(all=True, filters={"label": LABEL}):
            if abandoned(container.labels.get(LABEL, "")):
                with contextlib.suppress(docker.errors.APIError):
                    container.remove(force=True, v=True)
                    count += 1
        for network in self.client.networks.list(filters={"label": LABEL}):
            if abandoned((network.attrs.get("Labels") or {}).get(LABEL, "")):
                with contextlib.suppress(docker.errors.APIError):
                    network.remove()
                    count += 1
        return count


class ImageServer(Server):
    """One container."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        image: Any,
        model: Path,
        *,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        device: str,
        read_only: bool,
    ) -> None:
        super().__init__(name)
        self._engine = engine
        self._image = image
        self._model = model
        self._arguments = arguments
        self._environment = environment
        self._device = device
        self._read_only = read_only
        self._container: Any = None
        self._network: Any = None
        self.user = random.SystemRandom().randrange(100_000, 2_000_000_000)

    def start(self) -> None:
        """Make the network and the container, start it and learn its address."""
        labels = {LABEL: owner_of_this_process()}
        name = f"seatrial-smoke-{uuid.uuid4().hex[:12]}"
        try:
            self._network = self._engine.client.networks.create(name, driver="bridge", internal=True, labels=labels)
            self._container = self._engine.client.containers.create(
                self._image.id,
                command=[f"{MODELS}/{self._model.name}", *self._arguments],
                name=name,
                labels=labels,
                network=name,
                user=str(self.user),
                environment={"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **self._environment},
                mounts=[docker.types.Mount(f"{MODELS}/{self._model.name}", str(self._model), "bind", read_only=True)],
                read_only=self._read_only,
                shm_size=SHARED_MEMORY,
                tmpfs=dict.fromkeys(self._writable(), "") if self._read_only else None,
                **DEVICES[self._device],
            )
            self.started = time.monotonic()
            self._container.start()
            self._container.reload()
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            self.close()
            raise SetupError(f"the container of {self.name} could not be started: {error}") from None
        address = self._container.attrs["NetworkSettings"]["Networks"][name]["IPAddress"]
        self.url = f"http://{address}:{PORT}"

    def _writable(self) -> list[str]:
        """Return the folders that stay writable on a read-only root: /tmp and the image's HOME."""
        pairs = (entry.partition("=") for entry in self._image.attrs["Config"].get("Env") or ())
        home = next((value for key, _, value in pairs if key == "HOME"), "")
        return ["/tmp", *([home] if home not in ("", "/", "/tmp") else [])]  # noqa: S108 (inside the container)

    def exit_code(self) -> int | None:
        """Return the container's exit code."""
        if self._container is None:
            return None
        self._container.reload()
        state = self._container.attrs["State"]
        return int(state["ExitCode"]) if state["Status"] in ("exited", "dead") else None

    def oom_killed(self) -> bool | None:
        """Return what the engine says: whether a process of the container was killed for memory."""
        if self._container is None:
            return None
        with contextlib.suppress(docker.errors.APIError, requests.exceptions.RequestException):
            self._container.reload()
            return bool(self._container.attrs["State"]["OOMKilled"])
        return None

    def log(self) -> str:
        """Return what the container printed."""
        if self._container is None:
            return ""
        with contextlib.suppress(docker.errors.APIError, requests.exceptions.RequestException):
            return str(self._container.logs().decode(errors="replace"))
        return ""

    def pids(self) -> list[int]:
        """Return the container's processes by their ids on this machine."""
        with contextlib.suppress(docker.errors.APIError, requests.exceptions.RequestException):
            table = self._container.top()
            at = table["Titles"].index("PID")
            return sorted(int(row[at]) for row in table["Processes"])
        return []

    def ask_to_end(self) -> None:
        """Send SIGTERM to the container's first process, as the engine does on stop."""
        with contextlib.suppress(docker.errors.APIError):
            self._container.kill(signal="SIGTERM")

    def close(self) -> None:
        """Remove container and network."""
        errors = (docker.errors.DockerException, requests.exceptions.RequestException)
        if self._container is not None:
            with contextlib.suppress(*errors):
                self._container.remove(force=True, v=True)
                self._container = None
        if self._network is not None:
            with contextlib.suppress(*errors):
                self._network.remove()
                self._network = None
