"""An OCI layout, folder or tar, lent to the engine without a name for as long as it is looked at."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

import docker

from seatrial.model.errors import UsageError
from seatrial.ports.engine import engine_errors, load_stream
from seatrial.ports.tarstream import CHUNK, END

NAMING = ("index.json", "manifest.json", "repositories")
"""Members that can give an image a name; they are written again without one."""

Member = tuple[str, int, IO[bytes]]


@contextlib.contextmanager
def loaded_layout(client: docker.DockerClient, path: Path) -> Iterator[str]:
    """Load a layout, give the image's Id, and take the image away again unless the engine had it before.

    Raises:
        UsageError: the path is no OCI layout and no image archive.
        EngineError: the engine refuses it.
        DiskError: the engine's disk is full.
    """
    with engine_errors("list its images"):
        before = {str(one["Id"]) for one in client.api.images(all=True)}
    image = load_stream(client, layout_stream(path), doing="load the layout", what=str(path))
    try:
        yield image
    finally:
        if image not in before:
            with engine_errors("remove the image again"):
                client.api.remove_image(image, noprune=True)


def layout_stream(path: Path) -> Iterator[bytes]:
    """Give a layout's bytes as the tar that an engine loads, with whatever would name the image left out.

    Raises:
        UsageError: see :func:`loaded_layout`.
    """
    found = False
    with contextlib.closing(_members(path)) as members:
        for name, size, stream in members:
            data: bytes | None = None
            if name in NAMING:
                found = True
                data = _nameless(name, stream.read(CHUNK))
                if data is None:
                    continue
            member = tarfile.TarInfo(name)
            member.size = size if data is None else len(data)
            yield member.tobuf()
            body: IO[bytes] = stream if data is None else io.BytesIO(data)
            while block := body.read(CHUNK):
                yield block
            yield bytes(-member.size % tarfile.BLOCKSIZE)
    if not found:
        raise _no_layout(path, "it holds neither index.json nor manifest.json")
    yield bytes(END)


def _members(path: Path) -> Generator[Member]:
    if path.is_dir():
        if not (path / "index.json").is_file():
            raise _no_layout(path, "the folder holds no index.json")
        for file in sorted(one for one in path.rglob("*") if one.is_file()):
            with file.open("rb") as stream:
                yield file.relative_to(path).as_posix(), file.stat().st_size, stream
        return
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                stream_or_none = archive.extractfile(member) if member.isreg() else None
                if stream_or_none is not None:
                    yield member.name.removeprefix("./"), member.size, stream_or_none
    except (OSError, tarfile.TarError) as error:
        raise _no_layout(path, str(error)) from None


def _nameless(name: str, data: bytes) -> bytes | None:
    """Return the member's text without names, None where the member is of no other use."""
    if name == "repositories":
        return None
    said: Any = json.loads(data)
    if name == "index.json":
        for one in said.get("manifests", ()):
            one.pop("annotations", None)
    else:
        for one in said:
            one["RepoTags"] = None
    return json.dumps(said).encode()


def _no_layout(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is no OCI layout", why=why, do="give a layout's folder or tar, or an image's name")
