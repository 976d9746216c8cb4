"""A small client for the OCI distribution API: one repository, content checked both ways.

Why not a library: the ones there are delete more than they are asked to, or do
not raise on a failed upload. `docker push` needs a name first; here the content
goes up by digest and names are given later.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from seatrial.model.errors import IntegrityError, RegistryError
from seatrial.ports.registry_http import Answer, Door, Target
from seatrial.ports.registry_login import Login, TransientError

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MOST_PAGES = 1000
"""Pages of tags that are read before a registry counts as broken."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest's exact bytes."""

    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """Return the digest that names these bytes."""
        return digest_of_bytes(self.data)

    def parsed(self) -> dict[str, Any]:
        """Return the JSON object; RegistryError when it is none."""
        try:
            value = json.loads(self.data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise RegistryError(f"the manifest {self.digest} is not a JSON object")
        return value


def digest_of_bytes(data: bytes) -> str:
    """Return the OCI digest of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry:
    """One repository of a registry; the arguments are those of :class:`seatrial.ports.registry_http.Door`."""

    def __init__(
        self,
        target: Target,
        login: Login | None = None,
        *,
        plain: bool | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.target = target
        self._door = Door(target, login, plain=plain, transport=transport, sleep=sleep)

    def __enter__(self) -> Registry:
        """Return the open client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close its connections."""
        self._door.close()

    # -- manifests and names

    def manifest(self, reference: str) -> Manifest | None:
        """Return the manifest behind a tag or a digest, its bytes checked, or None when there is none."""
        url = self._door.url(f"manifests/{reference}")
        accept = {"Accept": ", ".join(MANIFEST_TYPES)}
        answer = self._door.retry(
            f"give the manifest {reference}", lambda: self._door.once("GET", url, good=(200, 404), headers=accept)
        )
        if answer.status == 404:
            return None
        found = Manifest(answer.body, answer.headers.get("content-type", "").partition(";")[0].strip())
        stated = answer.headers.get("docker-content-digest", found.digest)
        wanted = reference if reference.startswith("sha256:") else stated
        if found.digest != wanted or stated != found.digest:
            raise RegistryError(
                f"the registry {self.target.host} returned other bytes than it names",
                why=f"asked for {wanted}, got {found.digest}",
                do="check the registry's storage",
            )
        return found

    def put_manifest(self, manifest: Manifest) -> None:
        """Store a manifest under its digest alone, and read it back."""
        self._put(manifest, manifest.digest)

    def put_tag(self, tag: str, manifest: Manifest) -> None:
        """Let a tag stand for a manifest that the repository holds, and read it back."""
        self._put(manifest, tag)

    def _put(self, manifest: Manifest, reference: str) -> None:
        url = self._door.url(f"manifests/{reference}")
        headers = {"Content-Type": manifest.media_type}
        self._door.retry(
            f"take the manifest {reference}",
            lambda: self._door.once("PUT", url, good=(201,), headers=headers, content=lambda: manifest.data),
        )
        back = self.manifest(reference)
        if back is None or back.data != manifest.data:
            raise RegistryError(
                f"{self.target}: {reference} does not stand for what was just stored",
                why=f"stored {manifest.digest}, found {back.digest if back else 'nothing'}",
                do="somebody else may be writing there; run the same again",
            )

    def tags(self) -> list[str]:
        """Return every tag of the repository; none when it does not exist."""
        url: httpx.URL | None = self._door.url("tags/list?n=1000")
        found: list[str] = []
        for _ in range(MOST_PAGES):
            if url is None:
                return found
            answer = self._page(url)
            if answer.status == 404:
                return []
            try:
                found += json.loads(answer.body).get("tags") or []
            except (ValueError, AttributeError):
                raise RegistryError(f"the registry {self.target.host} lists no tags but nonsense") from None
            after = re.match(r"<([^>]+)>", answer.headers.get("link", ""))
            url = url.join(after.group(1)) if after else None
        raise RegistryError(
            f"the registry {self.target.host} does not come to an end of {self.target.repository}'s tags"
        )

    def _page(self, url: httpx.URL) -> Answer:
        return self._door.retry("list its tags", lambda: self._door.once("GET", url, good=(200, 404)))

    # -- blobs

    def small_blob(self, digest: str) -> bytes:
        """Return a blob of at most 4 MiB, checked; RegistryError when it is missing or other bytes come."""
        url = self._door.url(f"blobs/{digest}")
        answer = self._door.retry(f"give {digest}", lambda: self._door.once("GET", url, good=(200,)))
        if digest_of_bytes(answer.body) != digest:
            raise RegistryError(
                f"the registry {self.target.host} returned other bytes than it names",
                why=f"asked for {digest}, got {digest_of_bytes(answer.body)}",
                do="check the registry's storage",
            )
        return answer.body

    def upload(self, digest: str, size: int, chunks: Callable[[], Iterator[bytes]]) -> bool:
        """Store a blob unless the repository holds it; return whether bytes were sent.

        Args:
            digest: its OCI digest; the registry checks it, and so does this client while it reads.
            size: bytes.
            chunks: gives the bytes from the beginning, once for each try.
        """
        return self._door.retry(f"take {digest}", lambda: self._upload_once(digest, size, chunks))

    def _upload_once(self, digest: str, size: int, chunks: Callable[[], Iterator[bytes]]) -> bool:
        url = self._door.url(f"blobs/{digest}")
        if self._door.once("HEAD", url, good=(200, 404)).status == 200:
            return False
        opened = self._door.once("POST", self._door.url("blobs/uploads/"), good=(202,), headers={"Content-Length": "0"})
        location = opened.headers.get("location")
        if not location:
            raise RegistryError(f"the registry {self.target.host} opened an upload and did not say where")
        try:
            place = self._door.url("blobs/uploads/").join(location).copy_merge_params({"digest": digest})
        except httpx.InvalidURL:
            raise RegistryError(f"the registry {self.target.host} opened an upload at nonsense: {location}") from None
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        send = lambda: _checked(digest, chunks())  # noqa: E731
        done = self._door.once("PUT", place, good=(201, 404), headers=headers, content=send)
        if done.status == 404:
            raise TransientError("the registry lost the upload on the way")
        stated = done.headers.get("docker-content-digest", digest)
        if stated != digest:
            raise RegistryError(f"the registry {self.target.host} stored {stated}, sent was {digest}")
        return True


def _checked(digest: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Pass bytes on; hold the last piece back until the whole is known to be right."""
    total = hashlib.sha256()
    held = b""
    for piece in chunks:
        total.update(piece)
        if held:
            yield held
        held = piece
    if "sha256:" + total.hexdigest() != digest:
        raise IntegrityError(f"the local copy of {digest} is damaged", do="delete it and run the same again")
    yield held
