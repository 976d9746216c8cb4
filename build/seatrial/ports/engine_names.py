"""The names in a Docker engine, and its images as OCI archives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import docker
import requests
from docker.errors import DockerException, NotFound

from seatrial.model.errors import EngineError
from seatrial.model.names import REPOSITORY
from seatrial.ports.files import CHUNK, disk_errors


@contextlib.contextmanager
def _engine_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        raise EngineError(
            f"the container engine could not {doing}", why=str(error).splitlines()[0], do="see: docker info"
        ) from None


class EngineNames:
    """A :class:`seatrial.model.names.NameStore` over the Docker SDK.

    Args:
        client: a client of an engine with the containerd store, where an image's Id is its manifest digest.
        repository: the local repository.
    """

    def __init__(self, client: docker.DockerClient, repository: str = REPOSITORY) -> None:
        self._api = client.api
        self._repository = repository

    @property
    def where(self) -> str:
        """Return the repository."""
        return self._repository

    def tags(self) -> Sequence[str]:
        """Return every tag of the repository."""
        with _engine_errors("list its images"):
            images = self._api.images(name=self._repository)
        found = [name.rpartition(":") for image in images for name in image.get("RepoTags") or ()]
        return sorted(tag for repository, _, tag in found if repository == self._repository)

    def digest(self, tag: str) -> str | None:
        """Return the digest that a tag stands for, or None."""
        with _engine_errors(f"look up {self._repository}:{tag}"):
            try:
                return str(self._api.inspect_image(f"{self._repository}:{tag}")["Id"])
            except NotFound:
                return None

    def labels(self, digest: str) -> Mapping[str, str]:
        """Return an image's labels; EngineError when the engine does not hold it."""
        with _engine_errors(f"look at the image {digest}"):
            config = self._api.inspect_image(digest).get("Config") or {}
        return dict(config.get("Labels") or {})

    def put_tag(self, tag: str, digest: str) -> None:
        """Let a tag stand for an image, whatever it stood for before."""
        with _engine_errors(f"give the name {self._repository}:{tag}"):
            self._api.tag(digest, self._repository, tag, force=True)


def save_archive(client: docker.DockerClient, digest: str, path: Path) -> None:
    """Write an image that the engine holds as an OCI archive; its manifest is byte for byte the one it was loaded with.

    Raises:
        EngineError: the engine does not hold it, or stops in the middle.
        DiskError: there is no room.
    """
    with disk_errors(path), _engine_errors(f"save the image {digest}"), path.open("wb") as stream:
        for piece in client.api.get_image(digest, chunk_size=CHUNK):
            stream.write(piece)
