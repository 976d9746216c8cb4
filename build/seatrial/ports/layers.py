"""The layers of an image, one by one, from the archive that an engine saves: also what a later layer hides."""

from __future__ import annotations

import base64
import gzip
import json
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from seatrial.model.errors import EngineError
from seatrial.ports.files import write_atomic
from seatrial.ports.tarstream import BUFFER, ChunkReader, forget_members

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
"""First bytes of a packed layer."""

SMALL = 4 << 20
"""Bytes that a manifest or a configuration may have."""

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
"""Names that take a path away, or all that lies below a folder, as the OCI image rules have it."""


_UNREADABLE = (
    tarfile.TarError,
    gzip.BadGzipFile,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    zlib.error,
    zstandard.ZstdError,
)


@dataclass(slots=True)
class Layer:
    """One layer: what it puts there and what it takes away, by absolute path."""

    files: dict[str, int] = field(default_factory=dict)
    """Everything that is no folder, with its bytes."""
    removed: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)
    """Folders of which nothing from below stays."""
    kept: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A file that one layer brings and a later one deletes or replaces; whoever has the image can still read it."""

    path: str
    layer: int
    """Number of the layer, 1 for the lowest."""
    size: int
    data: bytes | None
    """Its bytes, where they were kept."""


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """What an inspection asks of layers."""

    sizes: tuple[int, ...]
    """Bytes of each layer's files, the lowest first."""
    hidden: tuple[Hidden, ...]


def summary(layers: Sequence[Layer]) -> LayerSummary:
    """Return the sizes of layers and what they hide of each other."""
    return LayerSummary(tuple(sum(layer.files.values()) for layer in layers), tuple(hidden_files(layers)))


def keep_summary(seen: LayerSummary, folder: Path, digest: str) -> None:
    """Write a summary down for an image's digest; only its owner may read it, for hidden files may be secrets."""
    hidden = [[h.path, h.layer, h.size, h.data and base64.b64encode(h.data).decode()] for h in seen.hidden]
    data = json.dumps({"sizes": seen.sizes, "hidden": hidden}).encode()
    write_atomic(folder / f"{digest.removeprefix('sha256:')}.json", data, mode=0o600)


def kept_summary(folder: Path, digest: str) -> LayerSummary | None:
    """Return the summary of a digest that was written down, None when there is none that can be read."""
    try:
        data = json.loads((folder / f"{digest.removeprefix('sha256:')}.json").read_bytes())
        hidden = [Hidden(p, n, size, base64.b64decode(text) if text else None) for p, n, size, text in data["hidden"]]
        return LayerSummary(tuple(data["sizes"]), tuple(hidden))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def read_layers(chunks: Iterable[bytes], keep: Callable[[str, int], bool]) -> tuple[Layer, ...]:
    """Read an image archive, as `docker save` or buildx writes it, once, and return its layers, the lowest first.

    Args:
        chunks: bytes of the archive.
        keep: asked with absolute path and size: hold the bytes of this file?

    Raises:
        EngineError: the archive or a layer cannot be read, or it holds no image.
    """
    found: dict[str, Layer] = {}
    texts: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=cast(IO[bytes], ChunkReader(chunks)), mode="r|", bufsize=BUFFER) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is None:
                    found.update({member.name: found[member.linkname]} if member.linkname in found else {})
                    continue
                head = stream.read(min(member.size, 4))
                if head[:1] in (b"{", b"["):
                    texts[member.name] = head + stream.read(SMALL)
                elif (layer := _layer(head, stream, keep)) is not None:
                    found[member.name] = layer
                forget_members(archive)
        return tuple(found[name] for name in _order(texts))
    except _UNREADABLE as error:
        raise EngineError(
            "the image's layers could not be read",
            why=f"{type(error).__name__}: {error}",
            do="see whether docker save writes the image, and run the same again",
        ) from None


def _order(texts: Mapping[str, bytes]) -> list[str]:
    """Return the names of the layers' members in order: by Docker's manifest.json, else by the OCI index."""
    if "manifest.json" in texts:
        return [str(name) for name in json.loads(texts["manifest.json"])[0]["Layers"]]
    manifest = json.loads(texts["index.json"])
    while "layers" not in manifest:
        manifest = json.loads(texts[_blob(manifest["manifests"][0]["digest"])])
    return [_blob(layer["digest"]) for layer in manifest["layers"]]


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def hidden_files(layers: Iterable[Layer]) -> Iterator[Hidden]:
    """Yield every file that a container does not see because a later layer deletes or replaces it."""
    above: set[str] = set()
    gone: set[str] = set()
    emptied: set[str] = set()
    for number, layer in reversed(list(enumerate(layers, start=1))):
        for path, size in layer.files.items():
            if path in above or path in gone or any(up in gone or up in emptied or up in above for up in _above(path)):
                yield Hidden(path, number, size, layer.kept.get(path))
        above |= layer.files.keys()
        gone |= layer.removed
        emptied |= layer.emptied


def _layer(head: bytes, stream: IO[bytes], keep: Callable[[str, int], bool]) -> Layer | None:
    """Read a blob if it is a layer; another text beside the layers is none."""
    whole = _Joined(head, stream)
    plain: Any = whole
    if head.startswith(GZIP):
        plain = gzip.GzipFile(fileobj=cast(IO[bytes], whole))
    elif head == ZSTD:
        plain = zstandard.ZstdDecompressor().stream_reader(cast(IO[bytes], whole), read_across_frames=True)
    layer = Layer()
    try:
        with tarfile.open(fileobj=plain, mode="r|", bufsize=BUFFER) as tar:
            for member in tar:
                _take(layer, tar, member, keep)
                forget_members(tar)
    except tarfile.ReadError:
        if layer.files or plain is not whole:
            raise
        return None  # no tar file at all: a text beside the layers
    return layer


def _take(layer: Layer, tar: tarfile.TarFile, member: tarfile.TarInfo, keep: Callable[[str, int], bool]) -> None:
    path = posixpath.normpath("/" + member.name.lstrip("/"))
    folder, name = posixpath.split(path)
    if name == OPAQUE:
        layer.emptied.add(folder)
    elif name.startswith(WHITEOUT):
        layer.removed.add(posixpath.join(folder, name.removeprefix(WHITEOUT)))
    elif not member.isdir():
        layer.files[path] = member.size if member.isreg() else 0
        if member.isreg() and keep(path, member.size):
            stream = tar.extractfile(member)
            layer.kept[path] = stream.read() if stream is not None else b""


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = posixpath.dirname(path)
        yield path


class _Joined:
    """Give back the bytes that were read to see what a stream is, and then the stream."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._rest.read(size)
        head = self._head if size < 0 else self._head[:size]
        self._head = self._head[len(head) :]
        return head or self._rest.read(size)
