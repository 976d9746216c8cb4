"""The little that an inspection asks of a container engine, and Docker's answers to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, NullResource

from seatrial.model.errors import EngineError, UsageError

CHUNK = 1 << 20
"""Bytes of an export that are taken at a time."""

OWNER_LABEL = "seatrial.inspect.pid"
"""Container label with the process that made it, so that a later run can clear what a killed one left."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the engine's image configuration says, in plain values."""

    digest: str
    """The image's Id, `sha256:...`."""
    user: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    labels: dict[str, str]
    health: tuple[str, ...]
    """HEALTHCHECK's test, `NONE` or nothing when there is none."""
    stop_signal: str
    working_dir: str
    machine: str
    """Architecture in the OCI words: amd64, arm64."""
    history: tuple[str, ...]
    """Build steps as the image's history shows them, the newest first."""
    layer_bytes: int
    """Bytes of all layers, as the history counts them."""
    names: tuple[str, ...] = ()
    """Tags under which the engine holds it."""


@dataclass(frozen=True, slots=True)
class OneRun:
    """How a short-lived container ended; `status` is None when its time ran out."""

    status: int | None
    stdout: str
    stderr: str


class Images(Protocol):
    """The little that an inspection asks of a container engine. Each call raises EngineError when it cannot answer."""

    def facts(self, image: str) -> ImageFacts:
        """Return the configuration of an image that the engine holds."""
        ...

    def export(self, image: str) -> AbstractContextManager[Iterable[bytes]]:
        """Give the flattened file system as a tar stream from a container that is never started."""
        ...

    def archive(self, image: str) -> AbstractContextManager[Iterable[bytes]]:
        """Give the image as an archive of its layers, as `docker save` writes it."""
        ...

    def run_once(self, image: str, argv: tuple[str, ...], *, timeout: float) -> OneRun:
        """Run one command in a fresh container with no network, in place of the entrypoint, and remove it."""
        ...


class DockerImages:
    """Answer through the Docker SDK. The client's own time limit applies to every call but the export."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._api = client.api
        self._client = client

    def facts(self, image: str) -> ImageFacts:
        """Return an image's configuration; UsageError when the engine does not hold it."""
        with _engine_errors():
            try:
                attributes = self._api.inspect_image(image)
            except ImageNotFound:
                raise UsageError(
                    f"the engine holds no image {image}", do="build it, pull it, or correct the name"
                ) from None
            except (NullResource, APIError) as error:
                if isinstance(error, APIError) and error.status_code != HTTPStatus.BAD_REQUEST:
                    raise
                raise UsageError(f"{image!r} names no image", do="give a name or a digest") from None
            steps = self._api.history(image)
        config: dict[str, Any] = attributes.get("Config") or {}
        return ImageFacts(
            digest=str(attributes["Id"]),
            user=config.get("User") or "",
            entrypoint=tuple(config.get("Entrypoint") or ()),
            command=tuple(config.get("Cmd") or ()),
            environment=dict(_pair(item) for item in config.get("Env") or ()),
            labels=dict(config.get("Labels") or {}),
            health=tuple((config.get("Healthcheck") or {}).get("Test") or ()),
            stop_signal=config.get("StopSignal") or "",
            working_dir=config.get("WorkingDir") or "",
            machine=attributes.get("Architecture") or "",
            history=tuple(str(step.get("CreatedBy") or "") for step in steps),
            layer_bytes=sum(int(step.get("Size") or 0) for step in steps),
            names=tuple(sorted(attributes.get("RepoTags") or ())),
        )

    @contextlib.contextmanager
    def export(self, image: str) -> Iterator[Iterable[bytes]]:
        """Give the flattened file system of a container that is made, never started, and removed."""
        with self._container(image, ("never-started",)) as container:
            with _engine_errors():
                stream = self._api.export(container, chunk_size=CHUNK)
            yield _blocks(stream)

    @contextlib.contextmanager
    def archive(self, image: str) -> Iterator[Iterable[bytes]]:
        """Give the image's manifest, configuration and layers."""
        with _engine_errors():
            stream = self._api.get_image(image, chunk_size=CHUNK)
        try:
            yield _blocks(stream)
        finally:
            stream.close()

    def run_once(self, image: str, argv: tuple[str, ...], *, timeout: float) -> OneRun:
        """Run one command with no network and return its status and output."""
        with self._container(image, argv) as container, _engine_errors():
            self._api.start(container)
            status: int | None = None
            with contextlib.suppress(requests.exceptions.Timeout, requests.exceptions.ConnectionError):
                # A passed time limit comes as either of the two, depending on where the read stood.
                status = int(self._api.wait(container, timeout=timeout)["StatusCode"])
            return OneRun(
                status,
                self._api.logs(container, stdout=True, stderr=False).decode(errors="replace"),
                self._api.logs(container, stdout=False, stderr=True).decode(errors="replace"),
            )

    @contextlib.contextmanager
    def _container(self, image: str, argv: tuple[str, ...]) -> Iterator[str]:
        with _engine_errors():
            self._clear_abandoned()
            made = self._api.create_container(
                image,
                entrypoint=list(argv[:1]),
                command=list(argv[1:]),
                labels={OWNER_LABEL: str(os.getpid())},
                healthcheck={"test": ["NONE"]},
                host_config=self._api.create_host_config(network_mode="none"),
                network_disabled=True,
            )
        try:
            yield str(made["Id"])
        finally:
            with _engine_errors(), contextlib.suppress(NotFound):
                self._api.remove_container(made["Id"], force=True, v=True)

    def _clear_abandoned(self) -> None:
        for left in self._api.containers(all=True, filters={"label": OWNER_LABEL}):
            owner = (left.get("Labels") or {}).get(OWNER_LABEL, "")
            if owner.isdigit() and not _lives(int(owner)):
                with contextlib.suppress(NotFound):
                    self._api.remove_container(left["Id"], force=True, v=True)


def _blocks(stream: Iterable[bytes]) -> Iterator[bytes]:
    with _engine_errors():
        yield from stream


@contextlib.contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn what the SDK and its HTTP library raise into EngineError."""
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        raise EngineError(
            "the container engine did not do what was asked", why=str(error), do="see: docker info"
        ) from None


def _pair(item: str) -> tuple[str, str]:
    name, _, value = item.partition("=")
    return name, value


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
