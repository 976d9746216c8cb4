"""Docker Engine through its SDK: reach it the way the docker command does, ask what it can do, load images."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import requests
from docker.context import ContextAPI
from docker.errors import DockerException, ImageNotFound
from docker.tls import TLSConfig

from seatrial.model.errors import DiskError, EngineError, SeatrialError

NO_ROOM = ("no space left on device", "disk quota exceeded")
STORE = "io.containerd.snapshotter.v1"
"""What the engine's information says when images lie in containerd's store."""
OLDEST_MAJOR = 26
CALL_SECONDS = 120
LOAD_SECONDS = 1800


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn the SDK's and the transport's exceptions into one line.

    Raises:
        DiskError: the engine's disk is full.
        EngineError: the engine refused, is down, or went away in the middle.
    """
    try:
        yield
    except SeatrialError:
        raise
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        raise as_error(doing, str(error)) from None


def as_error(doing: str, text: str) -> SeatrialError:
    """Return the error for what an engine, or the docker command, said when it failed."""
    line = " ".join(text.split())
    if any(mark in line.lower() for mark in NO_ROOM):
        return DiskError(
            f"the container engine has no room left to {doing}",
            why=line[:300],
            do="free space (docker system df shows what takes it) and run the same again",
        )
    return EngineError(f"the container engine could not {doing}", why=line[:300], do="see that `docker info` answers")


def endpoint() -> tuple[str | None, TLSConfig | None, str]:
    """Return URL, TLS settings and source of the engine, as the docker command chooses it.

    DOCKER_HOST comes first, then DOCKER_CONTEXT, then the context of the user's configuration. The URL is None for
    the SDK's own reading of DOCKER_HOST and for the default socket.

    Raises:
        EngineError: the context does not exist.
    """
    if os.environ.get("DOCKER_HOST"):
        return None, None, "DOCKER_HOST"
    name = os.environ.get("DOCKER_CONTEXT") or _current_context()
    if name in ("", "default"):
        return None, None, ""
    with engine_errors(f"be found through the context {name!r}"):
        context = ContextAPI.get_context(name)
    if context is None:
        raise EngineError(f"there is no docker context {name!r}", do="docker context ls shows those that exist")
    return context.Host, context.TLSConfig, f"the docker context {name!r}"


def _current_context() -> str:
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(data.get("currentContext") or "") if isinstance(data, dict) else ""


def connect() -> docker.DockerClient:
    """Return a client of an engine that answers.

    Raises:
        EngineError: none answers.
    """
    url, tls, source = endpoint()
    where = f" ({source})" if source else ""
    with engine_errors(f"be reached{where}"):
        if url is None:
            client = docker.from_env(timeout=CALL_SECONDS)
        else:
            ssh = url.startswith("ssh://")
            client = docker.DockerClient(base_url=url, tls=tls or False, timeout=CALL_SECONDS, use_ssh_client=ssh)
        client.ping()
    return client


def answers() -> bool:
    """Tell whether an engine answers."""
    try:
        connect().close()
    except SeatrialError:
        return False
    return True


def chosen_by_user() -> str:
    """Return what names an engine other than this machine's default one; empty when nothing does."""
    return endpoint()[2]


def lacks(info: dict[str, Any]) -> list[str]:
    """Return what an engine lacks for reproducible builds, one sentence each, from its own information."""
    missing: list[str] = []
    version = str(info.get("ServerVersion", ""))
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < OLDEST_MAJOR:
        missing.append(f"it is version {version or 'unknown'}, and {OLDEST_MAJOR} or newer is needed")
    status = {str(key): str(value) for key, value in info.get("DriverStatus") or ()}
    if status.get("driver-type") != STORE:
        missing.append(
            "it keeps images outside containerd's store, where an image's Id is not its manifest digest: "
            'set {"features": {"containerd-snapshotter": true}} in /etc/docker/daemon.json and restart it'
        )
    return missing


def require_abilities(client: docker.DockerClient) -> None:
    """Refuse an engine that cannot hold reproducible images, saying precisely what it lacks.

    Raises:
        EngineError: it is too old or keeps images in another store.
    """
    with engine_errors("say what it is"):
        info = client.info()
    missing = lacks(info)
    if missing:
        raise EngineError(
            "the container engine answers and cannot be used",
            why="; ".join(missing),
            do="change that, or point DOCKER_HOST at another engine, and run the same again",
        )


def load_archive(client: docker.DockerClient, archive: Path) -> str:
    """Load an OCI archive without a name and return the image's Id.

    Raises:
        EngineError: the engine refused it or went away.
        DiskError: the engine's disk is full.
    """
    with engine_errors("load the image"), archive.open("rb") as stream:
        return load_stream(client, stream, doing="load the image", what="an archive")


def load_stream(client: docker.DockerClient, data: Any, *, doing: str, what: str) -> str:
    """Send an image archive to the engine and return the image's Id.

    Args:
        data: what requests takes as a body: a file, or an iterator of bytes.
        doing: what an error says that could not be done.
        what: what an error calls the archive.

    Raises:
        EngineError: the engine refused it or went away.
        DiskError: the engine's disk is full.
    """
    loaded = ""
    with engine_errors(doing):
        answer = client.api._post(
            client.api._url("/images/load"), data=data, params={"quiet": True}, stream=True, timeout=LOAD_SECONDS
        )
        client.api._raise_for_status(answer)
        for event in client.api._stream_helper(answer, decode=True):
            if "error" in event:
                raise as_error(doing, str(event["error"]))
            text = str(event.get("stream", ""))
            if text.startswith("Loaded image ID: "):
                loaded = text.removeprefix("Loaded image ID: ").strip()
    if not loaded:
        raise EngineError(f"the container engine loaded {what} and named no image", do="see its log")
    return loaded


def holds(client: docker.DockerClient, digest: str) -> bool:
    """Tell whether the engine holds an image under exactly this digest."""
    with engine_errors("look for the image"):
        try:
            return bool(client.api.inspect_image(digest)["Id"] == digest)
        except ImageNotFound:
            return False


def image_size(client: docker.DockerClient, digest: str) -> int:
    """Return the size of an image as the engine counts it, in bytes."""
    with engine_errors("measure the image"):
        return int(client.api.inspect_image(digest)["Size"])
