"""Small images, good reports, and a real registry on loopback, for tests of names and pushes."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from seatrial.model.gate import Policy, Requirement
from seatrial.model.names import INPUTS_LABEL, REVISION_LABEL, Line
from seatrial.model.report import Case, Device, Outcome, Report

LINE = Line(base="0.28.0", platform="cpu")
NEEDS = (
    Requirement(kind="inspect", profile="inspect", cases=("labels",)),
    Requirement(kind="smoke", profile="basic", cases=("ready", "first-request")),
)
POLICY = Policy(base="0.28.0", platform="cpu", device="cpu", requirements=NEEDS)
START_LIMIT = 30.0
"""Seconds for a registry to answer for the first time."""


def reports(digest: str, *, bad: str = "") -> tuple[Report, ...]:
    """Return the reports that `POLICY` asks for, with one failed case if named."""
    return tuple(
        Report(
            schema="seatrial.report/1",
            kind=need.kind,
            profile=need.profile,
            subject=digest,
            subject_kind="image",
            platform=LINE.platform,
            base=LINE.base,
            device=Device(kind="cpu", name="a processor"),
            started="2026-11-30T12:00:00Z",
            seconds=1.0,
            cases=tuple(
                Case(name=name, outcome=Outcome.FAILED if name == bad else Outcome.PASSED) for name in need.cases
            ),
        )
        for need in NEEDS
    )


def oci_digest(data: bytes) -> str:
    """Return the digest that names some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _tar(files: Sequence[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class SmallImage:
    """An OCI archive with one file a layer."""

    digest: str
    archive: Path
    manifest: bytes
    blobs: dict[str, bytes]

    @property
    def size(self) -> int:
        """Return the bytes of all blobs but the manifest."""
        return sum(len(data) for data in self.blobs.values())


def make_image(
    path: Path,
    revision: int,
    layers: Sequence[bytes],
    labels: Mapping[str, str] | None = None,
    *,
    wrong_size: bool = False,
) -> SmallImage:
    """Write an OCI archive whose labels state a revision; other layers make another image."""
    plain = [_tar([(f"file{index}", data)]) for index, data in enumerate(layers)]
    packed = [gzip.compress(data, mtime=0) for data in plain]
    inputs = hashlib.sha256(b"".join(layers)).hexdigest()
    stated = {REVISION_LABEL: str(revision), INPUTS_LABEL: inputs} if labels is None else dict(labels)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": stated},
            "rootfs": {"type": "layers", "diff_ids": [oci_digest(data) for data in plain]},
        }
    ).encode()
    kind = "application/vnd.oci.image"
    named = [
        {"mediaType": f"{kind}.layer.v1.tar+gzip", "digest": oci_digest(data), "size": len(data) + wrong_size}
        for data in packed
    ]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": {"mediaType": f"{kind}.config.v1+json", "digest": oci_digest(config), "size": len(config)},
            "layers": named,
        }
    ).encode()
    entry = {"mediaType": f"{kind}.manifest.v1+json", "digest": oci_digest(manifest), "size": len(manifest)}
    index = json.dumps({"schemaVersion": 2, "mediaType": f"{kind}.index.v1+json", "manifests": [entry]}).encode()
    blobs = {oci_digest(data): data for data in (*packed, config)}
    files = [(f"blobs/sha256/{oci_digest(data)[7:]}", data) for data in (*packed, config, manifest)]
    head = [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", index)]
    path.write_bytes(_tar([*head, *files]))
    return SmallImage(oci_digest(manifest), path, manifest, blobs)


def free_port() -> int:
    """Return a port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def registry_server(folder: Path, *, more: str = "", scheme: str = "http", port: int = 0) -> Iterator[str]:
    """Run Debian's docker-registry with its storage in a folder; gives HOST:PORT.

    Args:
        more: lines for its configuration (authentication).
        scheme: https needs `server.crt` and `server.key` in the folder.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("not run: docker-registry is not installed (the distribution's package docker-registry)")
    port = port or free_port()
    tls = f"  tls:\n    certificate: {folder}/server.crt\n    key: {folder}/server.key\n" if scheme == "https" else ""
    config = (
        f"version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {folder}/storage\n"
        f"http:\n  addr: 127.0.0.1:{port}\n{tls}{more}"
    )
    (folder / "config.yml").write_text(config)
    with (folder / "registry.log").open("wb") as log:
        server = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        _until_it_answers(f"{scheme}://127.0.0.1:{port}/v2/", server, folder)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=START_LIMIT)


def _until_it_answers(url: str, server: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + START_LIMIT
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(url, verify=False, trust_env=False)
            return
        time.sleep(0.05)
    raise AssertionError("the registry did not start: " + (folder / "registry.log").read_text())
