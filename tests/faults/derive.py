"""Images that are the good one and one more layer, loaded into the engine without copying what they share.

An OCI archive need not hold blobs that containerd's store has already, so a derived image costs its own layer alone:
0.2 s instead of the minute that a build takes. Source: the OCI image specification, media types and whiteouts.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import csv
import gzip
import hashlib
import io
import json
import os
import posixpath
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker

from seatrial.model.expectation import recorded_digest
from seatrial.ports.cache import default_root
from seatrial.ports.engine import load_archive
from seatrial.ports.rootfs import RootFs
from seatrial.stages.inspect.environment import Environment

LAYER = "application/vnd.oci.image.layer.v1.tar"
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
WHITEOUT = ".wh."
JOURNAL = default_root() / "faults" / "loaded"
"""One file for each derived image that the engine holds, with the process that loaded it."""
MOMENT = 1_700_000_000
"""Modification time of everything that is seeded, seconds."""


def digest(data: bytes) -> str:
    """Return the digest that names some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass
class Layer:
    """What a derived image has beyond the good one: a layer, and changes of the configuration."""

    root: RootFs
    python: Environment
    read: Callable[[str], bytes]
    """Give the bytes of a file of the good image."""
    pristine: Callable[[str], bytes]
    """Give the bytes of a file of the base before any fix: name below the tree."""
    config: dict[str, Any]
    """The whole OCI configuration; change it in place."""
    members: dict[str, tuple[tarfile.TarInfo, bytes]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    meant: dict[str, str] = field(default_factory=dict)
    """Files of vLLM that the build is told to expect so, as if a fix or upstream had brought them: name to SHA-256."""
    locked: set[str] = field(default_factory=set)
    """Distributions whose lock agrees with what was changed: their wheels came so from their makers."""
    _records: dict[str, list[str]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the part of the configuration that containers are made from."""
        found: dict[str, Any] = self.config["config"]
        return found

    @property
    def site(self) -> str:
        """Return the folder that vLLM is installed in."""
        assert self.python.vllm is not None
        return self.python.vllm.site

    def real(self, path: str) -> str:
        """Return where a path lies when the links on its way are followed; its last part may be new, or a link."""
        folder, name = posixpath.split(path)
        return posixpath.join(self.root.resolve(folder) or folder, name)

    def put(self, path: str, data: bytes | str, *, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        """Write a file."""
        body = data.encode() if isinstance(data, str) else data
        self._member(path, tarfile.REGTYPE, mode, uid, gid).size = len(body)
        self.members[self.real(path)] = (self.members[self.real(path)][0], body)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        self._member(path, tarfile.SYMTYPE, 0o777, 0, 0).linkname = target

    def folder(self, path: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0) -> None:
        """Make a folder, or give one another mode."""
        self._member(path, tarfile.DIRTYPE, mode, uid, gid)

    def mode(self, path: str, mode: int) -> None:
        """Give a file or folder another mode."""
        real = self.must(path)
        entry = self.root.entries[real]
        if entry.kind == "dir":
            self.folder(real, mode=mode, uid=entry.uid, gid=entry.gid)
        else:
            self.put(real, self.read(real), mode=mode, uid=entry.uid, gid=entry.gid)

    def remove(self, path: str) -> None:
        """Take a file, link or whole folder away."""
        real = self.real(path)
        if real not in self.root.entries:
            raise LookupError(f"the good image has no {path}")
        self.gone.append(real)

    def move(self, path: str, to: str) -> None:
        """Move a file; a link is followed, and goes as well."""
        data = self.read(path)
        self.put(to, data, mode=self.root.entries[self.must(path)].mode)
        for each in {self.real(path), self.must(path)}:
            self.remove(each)

    def must(self, path: str) -> str:
        """Return the real path of something that the good image holds."""
        real = self.root.resolve(path)
        if real is None:
            raise LookupError(f"the good image has no {path}")
        return real

    def installed(self, name: str, data: bytes | None) -> None:
        """Replace, add or (None) remove a file below the site folder, and let its owner's RECORD say so.

        It is then as its wheel had brought it, so that what is found is the fault and not the tampering.
        """
        path = f"{self.site}/{name}"
        entry = self.root.at(path)
        if data is None:
            self.remove(path)
        else:
            self.put(path, data, mode=entry.mode if entry else 0o644)
        owner = self._owner(name)
        self.recorded(owner, name, data)
        self.locked.add(owner)

    def recorded(self, distribution: str, name: str, data: bytes | None) -> None:
        """Change the line of a file in a distribution's RECORD, or (None) drop it."""
        one = self.python.named(distribution)
        if one is None:
            raise LookupError(f"{distribution} is not installed in the good image")
        path = f"{one.info}/RECORD"
        if distribution not in self._records:
            self._records[distribution] = (self.root.text(path) or "").splitlines()
        lines = [line for line in self._records[distribution] if not line.startswith((f"{name},", f'"{name}",'))]
        if data is not None:
            told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.insert(0, f"{name},sha256={told},{len(data)}")
        self._records[distribution] = lines
        self.put(path, "\n".join([*lines, ""]))

    def relocked(self) -> dict[str, str]:
        """Return the digest over the new RECORD of each distribution whose lock agrees with it."""
        rows = {name: csv.reader(self._records[name]) for name in self.locked}
        return {
            name: recorded_digest((row[0], row[1].partition("=")[2]) for row in lines if len(row) > 1)
            for name, lines in rows.items()
        }

    def edited(self, name: str, old: str, new: str) -> None:
        """Change words in an installed text file, with its RECORD."""
        text = self.read(f"{self.site}/{name}").decode()
        if old not in text:
            raise LookupError(f"{old!r} is not in {name}")
        self.installed(name, text.replace(old, new, 1).encode())

    def upstream(self, name: str, old: str, new: str) -> None:
        """Change words in a file of vLLM as if a fix had: the build expects the file as it is then."""
        self.edited(name, old, new)
        self.expect(name)

    def expect(self, name: str) -> None:
        """Let the build expect a file of vLLM as it is now."""
        self.meant[name] = hashlib.sha256(self.members[self.real(f"{self.site}/{name}")][1]).hexdigest()

    def metadata(self, distribution: str, old: str, new: str) -> None:
        """Change words in a distribution's METADATA, with its RECORD."""
        one = self.python.named(distribution)
        if one is None:
            raise LookupError(f"{distribution} is not installed in the good image")
        name = f"{one.info.removeprefix(one.site)[1:]}/METADATA"
        self.edited(name, old, new)

    def env(self, name: str, value: str | None) -> None:
        """Set a variable of the image, or (None) take it away."""
        others = [item for item in self.settings.get("Env") or [] if not item.startswith(f"{name}=")]
        self.settings["Env"] = others if value is None else [*others, f"{name}={value}"]

    def label(self, name: str, value: str | None) -> None:
        """Set a label, or (None) take it away."""
        self.settings["Labels"] = {k: v for k, v in self.settings["Labels"].items() if k != name}
        if value is not None:
            self.settings["Labels"][name] = value

    def tar(self) -> bytes:
        """Return the layer: what is gone first, then what is new."""
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as tar:
            for path in sorted(set(self.gone)):
                head, tail = posixpath.split(path)
                tar.addfile(tarfile.TarInfo(posixpath.join(head, WHITEOUT + tail).lstrip("/")))
            for path in sorted(self.members):
                member, data = self.members[path]
                tar.addfile(member, io.BytesIO(data))
        return target.getvalue()

    def _member(self, path: str, kind: bytes, mode: int, uid: int, gid: int) -> tarfile.TarInfo:
        real = self.real(path)
        member = tarfile.TarInfo(real.lstrip("/"))
        member.type, member.mode, member.uid, member.gid, member.mtime = kind, mode, uid, gid, MOMENT
        self.members[real] = (member, b"")
        return member

    def _owner(self, name: str) -> str:
        owners = self.python.owners().get(f"{self.site}/{name}", [])
        if owners:
            return owners[0].name
        return "vllm" if name.startswith("vllm/") else name.split("/", maxsplit=1)[0].replace("_", "-")


@dataclass(frozen=True, slots=True)
class Blobs:
    """Manifest and configuration of an image, as the engine gives them."""

    manifest: dict[str, Any]
    config: dict[str, Any]


def read_blobs(client: docker.DockerClient, image: str, keep: Path) -> Blobs:
    """Return an image's manifest and configuration; they are kept, because the engine only gives whole images."""
    path = keep / f"{image.removeprefix('sha256:')}.json"
    if path.is_file():
        return Blobs(**json.loads(path.read_text()))
    with tempfile.TemporaryFile() as archive:
        for piece in client.api.get_image(image, chunk_size=1 << 20):
            archive.write(piece)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:

            def blob(name: str) -> dict[str, Any]:
                stream = tar.extractfile(f"blobs/sha256/{name.removeprefix('sha256:')}")
                assert stream is not None
                found: dict[str, Any] = json.loads(stream.read())
                return found

            manifest = blob(image)
            blobs = Blobs(manifest, blob(manifest["config"]["digest"]))
    keep.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"manifest": blobs.manifest, "config": blobs.config}))
    return blobs


@contextlib.contextmanager
def derived(client: docker.DockerClient, good: Blobs, layer: Layer, title: str) -> Iterator[tuple[str, bytes]]:
    """Load the good image with one more layer; give its digest and the layer's tar, and remove it at the end."""
    data = layer.tar()
    empty = not layer.members and not layer.gone
    made = {"created_by": f"COPY {title} / # buildkit", **({"empty_layer": True} if empty else {})}
    layer.config.setdefault("history", []).append(made)
    with load(client, good, layer.config, [] if empty else [(data, data, LAYER)]) as image:
        yield image, b"" if empty else data


@contextlib.contextmanager
def load(
    client: docker.DockerClient, good: Blobs, config: Mapping[str, Any], layers: list[tuple[bytes, bytes, str]]
) -> Iterator[str]:
    """Load the good image's layers with more on top: plain tar, packed tar and media type of each."""
    told = copy.deepcopy(dict(config))
    manifest = copy.deepcopy(good.manifest)
    told["rootfs"]["diff_ids"] += [digest(plain) for plain, _, _ in layers]
    manifest["layers"] += [
        {"mediaType": kind, "digest": digest(packed), "size": len(packed)} for _, packed, kind in layers
    ]
    configuration = json.dumps(told).encode()
    manifest["config"] |= {"digest": digest(configuration), "size": len(configuration)}
    head = json.dumps(manifest).encode()
    entry = {"mediaType": manifest.get("mediaType", MANIFEST), "digest": digest(head), "size": len(head)}
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).encode()
    files = [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", index)]
    files += [(f"blobs/sha256/{digest(blob)[7:]}", blob) for blob in (*(p for _, p, _ in layers), configuration, head)]
    with tempfile.TemporaryDirectory(prefix="seatrial-faults-") as folder:
        archive = Path(folder) / "image.tar"
        with tarfile.open(archive, "w") as tar:
            for name, blob in files:
                member = tarfile.TarInfo(name)
                member.size = len(blob)
                tar.addfile(member, io.BytesIO(blob))
        JOURNAL.mkdir(parents=True, exist_ok=True)
        note = JOURNAL / digest(head).removeprefix("sha256:")
        note.write_text(str(os.getpid()))
        image = load_archive(client, archive)
    try:
        yield image
    finally:
        _forget(client, note)


def clear_abandoned(client: docker.DockerClient) -> None:
    """Remove derived images that killed runs left in the engine."""
    for note in JOURNAL.glob("*"):
        with contextlib.suppress(ValueError):
            if not Path(f"/proc/{int(note.read_text())}").exists():
                _forget(client, note)


def _forget(client: docker.DockerClient, note: Path) -> None:
    with contextlib.suppress(docker.errors.ImageNotFound):
        client.images.remove(f"sha256:{note.name}", force=True)
    note.unlink(missing_ok=True)


def packed(data: bytes) -> bytes:
    """Return gzip bytes that are the same every time."""
    return gzip.compress(data, 1, mtime=0)
