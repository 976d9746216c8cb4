"""What fails around the real flow: the engine, the registry, the disk. One line each, nothing half made, then on."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docker
import pytest

from seatrial.ports.registry import Registry
from tests.minirepo import BASE, Mini, have_engine, mini_checkout
from tests.nameslab import free_port, registry_server

pytestmark = pytest.mark.engine
SOCKET = "/var/run/docker.sock"


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    found = have_engine()
    yield found
    found.close()


@pytest.fixture
def mini(tmp_path: Path, client: docker.DockerClient) -> Iterator[Mini]:
    with mini_checkout(tmp_path, client) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the registry client try as often as ever, without the pauses."""
    monkeypatch.setitem(Registry.__init__.__kwdefaults__, "sleep", lambda seconds: None)


@dataclass
class Proxy:
    """A socket in front of the engine's own that hangs up, for good, when it is asked for what `fatal` says."""

    path: Path
    fatal: bytes = b"\0never"
    open: list[socket.socket] = field(default_factory=list)
    dead: threading.Event = field(default_factory=threading.Event)

    def serve(self, server: socket.socket) -> None:
        """Take connections until the proxy is closed."""
        while True:
            try:
                caller, _ = server.accept()
            except OSError:
                return
            if self.dead.is_set():
                caller.close()
                continue
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(SOCKET)
            self.open += [caller, engine]
            for source, target in ((caller, engine), (engine, caller)):
                threading.Thread(target=self.pump, args=(source, target, source is caller), daemon=True).start()

    def pump(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        """Carry bytes one way; die when the fatal words come from the caller."""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks and self.fatal in data:
                    self.dead.set()
                    self.hang_up()
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End every connection."""
        for each in self.open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.open.clear()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Put a proxy in front of the engine and let DOCKER_HOST name it."""
    folder = Path(tempfile.mkdtemp(prefix="mini-"))  # the path of a socket has to be short
    made = Proxy(folder / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(made.path))
        server.listen(50)
        thread = threading.Thread(target=made.serve, args=(server,), daemon=True)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{made.path}")
        yield made
        made.hang_up()
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    shutil.rmtree(folder)


def nothing_was_named(mini: Mini) -> None:
    assert not any(mini.half_made().values()), mini.half_made()


def test_an_engine_that_is_down_is_said_and_nothing_is_installed(mini: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{free_port()}")
        mini.build().must_fail(9, "the container engine that DOCKER_HOST names does not answer", "unset DOCKER_HOST")
        patch.setenv("DOCKER_HOST", f"unix://{mini.root}/no.sock")
        mini.build().must_fail(9, "DOCKER_HOST names does not answer")
        patch.delenv("DOCKER_HOST")
        patch.setattr("seatrial.ports.engine.answers", lambda: False)
        found = shutil.which
        patch.setattr("shutil.which", lambda program, **more: None if program == "dockerd" else found(program, **more))
        mini.build().must_fail(9, "--no-setup")
    nothing_was_named(mini)
    assert mini.images() == []
    ended = mini.build()
    assert ended.code == 0, ended.text
    assert "unchanged: the patched tree is kept" in ended.text


@pytest.mark.parametrize(
    ("fatal", "doing"),
    [
        (b"POST /session", "build"),
        (b"/images/load", "load"),
        (b"/export", "inspect"),
        (b"/tag?", "name"),
    ],
)
def test_an_engine_that_dies_in_the_middle_is_one_line_and_the_next_run_goes_on(
    mini: Mini, proxy: Proxy, fatal: bytes, doing: str
) -> None:
    proxy.fatal = fatal
    ended = mini.build()
    ended.must_fail(9, "engine")
    assert proxy.dead.is_set(), f"the engine was never asked to {doing}"
    nothing_was_named(mini)
    proxy.fatal = b"\0never"
    proxy.dead.clear()
    ended = mini.build()
    assert ended.code == 0, ended.text
    assert "unchanged: the patched tree is kept" in ended.text
    assert mini.record().revision == 1
    assert len(mini.images()) == 1


@contextlib.contextmanager
def failing_registry(status: int, *, reads: int) -> Iterator[str]:
    """Serve a registry that answers reads and writes with two statuses; gives HOST:PORT."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self, code: int) -> None:
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.answer(200 if self.path == "/v2/" else reads)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            self.answer(status)

        def do_PUT(self) -> None:
            self.answer(status)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.usefixtures("impatient")
def test_a_registry_that_fails_gives_no_name_anywhere_and_one_that_works_gets_all(mini: Mini, tmp_path: Path) -> None:
    mini.build("--push", f"127.0.0.1:{free_port()}/team/vllm").must_fail(11, "127.0.0.1", "4 tries")
    with failing_registry(500, reads=500) as place:
        mini.build("--push", f"{place}/team/vllm").must_fail(11, place, "500")
    nothing_was_named(mini)
    assert mini.images() == [], "the registry was asked too late"
    with failing_registry(500, reads=404) as place:
        mini.build("--push", f"{place}/team/vllm").must_fail(11, place, "500")
        nothing_was_named(mini)
        mini.build("--push", f"{place}/team/vllm").must_fail(11, place, "500")
    nothing_was_named(mini)
    assert len(mini.images()) == 1
    (tmp_path / "registry").mkdir()
    with registry_server(tmp_path / "registry") as place:
        ended = mini.build("--push", f"{place}/team/vllm")
        assert ended.code == 0, ended.text
        record = mini.record()
        line = f"{place}/team/vllm"
        tag = f"{BASE}-{mini.name}"
        assert record.pushed == (f"{line}@{record.image.digest}", f"{line}:{tag}-r1", f"{line}:{tag}")
        ended = mini.build("--push", f"{place}/team/vllm")
        assert ended.code == 0, ended.text
        assert "is there already" in ended.text
        assert mini.record() == record
    assert mini.leftovers() == []


def test_a_refused_image_is_not_uploaded(mini: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINI_SMOKE", "fail")
    (tmp_path / "registry").mkdir()
    with registry_server(tmp_path / "registry") as place:
        mini.build("--push", f"{place}/team/vllm").must_fail(3, "first-request failed")
    assert not (tmp_path / "registry" / "storage").exists()
    nothing_was_named(mini)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Lay a file system of so many bytes over a folder that keeps its files."""
    kept = folder.with_name("kept")
    folder.mkdir(parents=True, exist_ok=True)
    folder.rename(kept)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(kept)


@pytest.mark.parametrize(("size", "foresight"), [("60k", True), ("20k", False), ("60k", False), ("200k", False)])
def test_a_full_cache_disk_is_said_and_more_room_mends_it(
    mini: Mini, size: str, foresight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(mini.cache, size), monkeypatch.context() as patch:
        if not foresight:  # others may take the room after it was measured
            for module in ("ports.index", "ports.download", "stages.wheel", "stages.image"):
                patch.setattr(f"seatrial.{module}.need_room", lambda *words: None)
        ended = mini.build()
        ended.must_fail(12)
        assert ("are free" in ended.text) == foresight
        nothing_was_named(mini)
    mini.keep_base_system()
    assert mini.built().revision == 1


def test_a_full_output_disk_is_said_and_more_room_mends_it(mini: Mini) -> None:
    with small_disk(mini.root / "out", "48k"):
        ended = mini.build()
        ended.must_fail(12)
        nothing_was_named(mini)
    assert mini.built().revision == 1


def test_cache_and_checkout_may_lie_on_two_file_systems(mini: Mini) -> None:
    with small_disk(mini.root / "out", "50m"):
        assert mini.built().revision == 1
        assert mini.leftovers() == []


def test_a_limit_on_the_size_of_files_is_no_fault_of_ours(mini: Mini) -> None:
    limited = mini.start(MINI_FILE_LIMIT="2000")
    said, _ = limited.communicate(timeout=60)
    assert limited.returncode == 12, said
    assert said.count("seatrial: ") == 1
    assert "Traceback" not in said
    nothing_was_named(mini)
    assert mini.built().revision == 1


def test_a_folder_that_may_not_be_written_is_said(mini: Mini) -> None:
    out = mini.root / "out"
    out.write_text("a file where the folder goes")
    ended = mini.build()
    ended.must_fail(12, "Not a directory")
    out.unlink()
    assert mini.built().revision == 1
