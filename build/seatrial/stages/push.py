"""Bring an image to a registry by its digest, nameless; the names come from the naming stage."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.model.errors import IntegrityError
from seatrial.ports.console import Console
from seatrial.ports.files import need_room, scratch_beside
from seatrial.ports.oci_archive import OciArchive
from seatrial.ports.registry import Manifest, Registry

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class Pushed:
    """An image that a registry holds."""

    reference: str
    """`HOST/REPO@sha256:...`."""
    digest: str
    sent: int
    """Bytes of blobs that had to be sent."""
    held: int
    """Bytes of blobs that the registry had already."""


def push_by_digest(
    digest: str,
    *,
    archive: Path,
    save: Callable[[Path], None],
    size: int,
    registry: Registry,
    console: Console,
) -> Pushed:
    """Upload what the registry lacks of an image, and the manifest under its digest alone.

    Args:
        digest: manifest digest of the image.
        archive: the OCI archive that holds it; when it is gone, the engine is asked for it again.
        save: writes the image from the engine as an OCI archive.
        size: bytes of room that such an archive needs.

    Raises:
        IntegrityError: the archive holds another image, or is damaged.
        RegistryError: the registry does not do its part; what it has is not sent again.
        DiskError: no room for the archive.
    """
    if archive.is_file():
        return _push(digest, OciArchive(archive), registry, console)
    need_room(archive, size, "the image archive")
    with scratch_beside(archive) as folder:
        console.detail(f"{archive.name} is gone; the engine writes it again")
        save(folder / "image.tar")
        return _push(digest, OciArchive(folder / "image.tar"), registry, console)


def _push(digest: str, archive: OciArchive, registry: Registry, console: Console) -> Pushed:
    reference = f"{registry.target}@{digest}"
    manifest = _manifest(archive, digest)
    blobs = _blobs(manifest, archive)
    if registry.manifest(digest) is not None:
        console.line(f"{reference} is there already")
        return Pushed(reference, digest, sent=0, held=sum(blobs.values()))
    sent = 0
    with console.progress(f"push {registry.target}", sum(blobs.values())) as progress:
        for blob, size in blobs.items():
            if registry.upload(blob, size, functools.partial(archive.chunks, blob)):
                sent += size
            progress.advance(size)
    registry.put_manifest(manifest)
    console.line(f"{reference}: {sent / 1e6:.1f} MB sent, {(sum(blobs.values()) - sent) / 1e6:.1f} MB were there")
    return Pushed(reference, digest, sent=sent, held=sum(blobs.values()) - sent)


def _manifest(archive: OciArchive, digest: str) -> Manifest:
    data = archive.small(digest)
    try:
        parsed = json.loads(data)
        media_type = str(parsed.get("mediaType") or OCI_MANIFEST)
    except (ValueError, AttributeError):
        raise IntegrityError(f"{digest} in {archive.path.name} is no manifest", do="build the image again") from None
    return Manifest(data, media_type)


def _blobs(manifest: Manifest, archive: OciArchive) -> dict[str, int]:
    """Return the blobs that a manifest names, with their sizes."""
    parsed: dict[str, Any] = manifest.parsed()
    try:
        wanted = [*parsed["layers"], parsed["config"]]
        blobs = {str(item["digest"]): int(item["size"]) for item in wanted}
    except (KeyError, TypeError, ValueError):
        raise IntegrityError(f"{manifest.digest} in {archive.path.name} names no layers and configuration") from None
    for blob, size in blobs.items():
        if archive.size(blob) != size:
            raise IntegrityError(
                f"{blob} in {archive.path.name} has {archive.size(blob)} bytes, its manifest says {size}",
                do="delete the archive and run the same again",
            )
    return blobs
