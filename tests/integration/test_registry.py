"""Push by digest and naming against a real registry on loopback, and a server that only answers 500."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from seatrial.model.errors import DiskError, IntegrityError, RefusedError, RegistryError, SeatrialError
from seatrial.model.names import REVISION_LABEL, choose_revision, existing_revisions
from seatrial.ports import registry_http
from seatrial.ports.console import Console
from seatrial.ports.registry import Registry
from seatrial.ports.registry_http import parse_target
from seatrial.ports.registry_login import Login, read_login
from seatrial.ports.registry_names import RegistryNames
from seatrial.stages.naming import give_names
from seatrial.stages.push import Pushed, push_by_digest
from tests.nameslab import LINE, POLICY, SmallImage, free_port, make_image, oci_digest, registry_server, reports

HTPASSWD = "user:$2b$04$seatrialtestsalt01234u8sKCIuaFLTMqSt1lgx6Nny5ros4e7Ke\n"
"""The word `word` for the user `user`."""
BIG = os.urandom(3 << 20)
ACCEPT = {"Accept": "application/vnd.oci.image.manifest.v1+json"}


def no_wait(seconds: float) -> None:
    del seconds


def copy_to(source: Path, path: Path) -> None:
    shutil.copy(source, path)


def no_save(path: Path) -> None:
    raise AssertionError(f"the engine was asked for {path}")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "registry"
    folder.mkdir()
    with registry_server(folder) as address:
        yield address


def client(address: str, login: Login | None = None) -> Registry:
    return Registry(parse_target(f"{address}/team/vllm"), login, sleep=no_wait)


def push(image: SmallImage, registry: Registry, save: Callable[[Path], None] = no_save, size: int = 0) -> Pushed:
    console = Console(out=io.StringIO(), ci=False)
    return push_by_digest(image.digest, archive=image.archive, save=save, size=size, registry=registry, console=console)


def name(image: SmallImage, revision: int, registry: Registry, tmp_path: Path, **changes: Any) -> tuple[str, ...]:
    return give_names(
        changes.pop("store", RegistryNames(registry)),
        image.digest,
        LINE,
        revision,
        reports=changes.pop("reports", reports(image.digest)),
        policy=changes.pop("policy", POLICY),
        lock=tmp_path / "locks" / "names",
        console=changes.pop("console", Console(out=io.StringIO(), ci=False)),
    )


def tags_at(host: str) -> dict[str, str]:
    """Ask the registry with another client than ours: tag to digest of the bytes that it gives."""
    found = httpx.get(f"http://{host}/v2/team/vllm/tags/list", trust_env=False).json().get("tags") or []
    return {
        tag: oci_digest(
            httpx.get(f"http://{host}/v2/team/vllm/manifests/{tag}", headers=ACCEPT, trust_env=False).content
        )
        for tag in found
    }


def blob_at(host: str, digest: str) -> bytes:
    return httpx.get(f"http://{host}/v2/team/vllm/blobs/{digest}", trust_env=False).content


# -- content


def test_an_image_goes_up_by_digest_and_has_no_name(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [BIG, b"patched python"])
    with client(host) as registry:
        pushed = push(image, registry)
    assert pushed.reference == f"{host}/team/vllm@{image.digest}"
    assert (pushed.sent, pushed.held) == (image.size, 0)
    held = httpx.get(f"http://{host}/v2/team/vllm/manifests/{image.digest}", headers=ACCEPT, trust_env=False)
    assert held.content == image.manifest
    for digest, data in image.blobs.items():
        assert blob_at(host, digest) == data
    assert tags_at(host) == {}


def test_the_same_again_sends_nothing_and_a_new_revision_only_its_last_layer(host: str, tmp_path: Path) -> None:
    first = make_image(tmp_path / "1.tar", 1, [BIG, b"one"])
    second = make_image(tmp_path / "2.tar", 2, [BIG, b"two"])
    with client(host) as registry:
        push(first, registry)
        assert push(first, registry).sent == 0
        pushed = push(second, registry)
    assert 0 < pushed.sent < 10_000
    assert pushed.held > len(BIG)


def test_a_push_that_broke_off_is_carried_on(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    image = make_image(tmp_path / "image.tar", 1, [BIG, b"small"])
    large = next(digest for digest, data in image.blobs.items() if len(data) > len(BIG) // 2)
    port = free_port()
    with registry_server(folder, port=port) as host, client(host) as registry:
        assert registry.upload(large, len(image.blobs[large]), lambda: iter([image.blobs[large]]))
    with client(host) as registry, pytest.raises(RegistryError, match="did not") as caught:
        push(image, registry)
    assert "run the same again" in caught.value.do
    with registry_server(folder, port=port) as host, client(host) as registry:
        pushed = push(image, registry)
    assert pushed.held == len(image.blobs[large])
    assert pushed.sent == image.size - pushed.held


def flipped(image: SmallImage, digest: str) -> None:
    """Change one byte of a blob where it stands in the archive."""
    data = bytearray(image.archive.read_bytes())
    at = data.index(image.blobs[digest]) + len(image.blobs[digest]) // 2
    data[at] ^= 1
    image.archive.write_bytes(data)


def test_a_damaged_archive_leaves_nothing_usable(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [BIG, b"small"])
    flipped(image, max(image.blobs, key=lambda digest: len(image.blobs[digest])))
    with client(host) as registry:
        with pytest.raises(IntegrityError, match="damaged"):
            push(image, registry)
        assert registry.manifest(image.digest) is None
    assert tags_at(host) == {}


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.01, 0.5, 0.9])
def test_a_truncated_archive_is_one_clear_error(host: str, tmp_path: Path, part: float) -> None:
    image = make_image(tmp_path / "image.tar", 1, [BIG, b"small"])
    whole = image.archive.read_bytes()
    image.archive.write_bytes(whole[: int(len(whole) * part)])
    with client(host) as registry:
        with pytest.raises(IntegrityError):
            push(image, registry)
        assert registry.manifest(image.digest) is None


def test_an_archive_of_another_image_is_refused(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    other = make_image(tmp_path / "image.tar", 1, [b"two"])
    with client(host) as registry, pytest.raises(IntegrityError, match=f"lacks {image.digest}"):
        push(image, registry)
    assert other.digest != image.digest


def test_an_archive_that_is_gone_is_asked_for_again(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    image.archive.rename(tmp_path / "engine.tar")
    with client(host) as registry:
        pushed = push(image, registry, save=functools.partial(copy_to, tmp_path / "engine.tar"))
    assert pushed.sent == image.size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine.tar", "registry"]


def test_no_room_for_an_archive_is_known_before_it_is_written(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    image.archive.unlink()
    with client(host) as registry, pytest.raises(DiskError, match="the image archive needs"):
        push(image, registry, size=1 << 60)


def test_an_image_that_is_there_is_not_looked_at_again(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [BIG, b"one"])
    with client(host) as registry:
        push(image, registry)
        registry.upload = lambda *args: pytest.fail("a blob was looked at")  # type: ignore[method-assign]
        assert push(image, registry).held == image.size


def test_a_manifest_that_is_wrong_about_a_size_is_refused(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"], wrong_size=True)
    with client(host) as registry, pytest.raises(IntegrityError, match="its manifest says"):
        push(image, registry)


# -- names


def test_an_image_is_named_after_the_gate(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    with client(host) as registry:
        push(image, registry)
        expected = (f"{host}/team/vllm:0.28.0-cpu-r1", f"{host}/team/vllm:0.28.0-cpu")
        assert name(image, 1, registry, tmp_path) == expected
        assert name(image, 1, registry, tmp_path) == expected
    assert tags_at(host) == {"0.28.0-cpu-r1": image.digest, "0.28.0-cpu": image.digest}


class ReadOnly(RegistryNames):
    """A store in which nothing may change."""

    def put_tag(self, tag: str, digest: str) -> None:
        raise AssertionError(f"{tag} was given again")


def test_names_that_are_there_are_not_given_again(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    with client(host) as registry:
        push(image, registry)
        given = name(image, 1, registry, tmp_path)
        assert name(image, 1, registry, tmp_path, store=ReadOnly(registry)) == given


def test_a_refused_image_keeps_its_digest_only(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    said = io.StringIO()
    with client(host) as registry:
        push(image, registry)
        with pytest.raises(RefusedError, match=r"gives .* no name") as caught:
            name(
                image,
                1,
                registry,
                tmp_path,
                reports=reports(image.digest, bad="first-request"),
                console=Console(out=said, ci=False),
            )
    assert "first-request failed" in caught.value.why
    assert "refused: smoke basic: first-request failed" in said.getvalue()
    assert tags_at(host) == {}


def test_an_image_that_was_not_pushed_gets_no_name(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    with client(host) as registry, pytest.raises(RegistryError, match="does not hold"):
        name(image, 1, registry, tmp_path)


def test_a_number_is_given_once_and_the_moving_name_goes_forward(host: str, tmp_path: Path) -> None:
    images = [make_image(tmp_path / f"{index}.tar", index, [b"%d" % index]) for index in (1, 2, 3)]
    rival = make_image(tmp_path / "rival.tar", 2, [b"rival"])
    with client(host) as registry:
        for image in (*images, rival):
            push(image, registry)
        said = io.StringIO()
        console = Console(out=said, ci=False)
        name(images[0], 1, registry, tmp_path, console=console)
        name(images[2], 3, registry, tmp_path, console=console)
        assert "stays" not in said.getvalue()
        assert name(images[1], 2, registry, tmp_path, console=console) == (f"{host}/team/vllm:0.28.0-cpu-r2",)
        assert "0.28.0-cpu stays at revision 3" in said.getvalue()
        with pytest.raises(RefusedError, match="already stands for"):
            name(rival, 2, registry, tmp_path)
        taken = existing_revisions(RegistryNames(registry), LINE)
    assert tags_at(host) == {
        "0.28.0-cpu-r1": images[0].digest,
        "0.28.0-cpu-r2": images[1].digest,
        "0.28.0-cpu-r3": images[2].digest,
        "0.28.0-cpu": images[2].digest,
    }
    assert [number for number, _ in taken] == [1, 2, 3]
    assert choose_revision(taken, hashlib.sha256(b"2").hexdigest()) == 2
    assert choose_revision(taken, hashlib.sha256(b"other").hexdigest()) == 4


def test_an_image_is_not_named_against_its_label(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"], labels={REVISION_LABEL: "7"})
    with client(host) as registry:
        push(image, registry)
        with pytest.raises(IntegrityError, match="cannot become revision 1"):
            name(image, 1, registry, tmp_path)
    assert tags_at(host) == {}


class DyingStore:
    """A store whose process is killed as soon as the first name is given."""

    def __init__(self, names: RegistryNames) -> None:
        self._names = names
        self.where = names.where

    def tags(self) -> Sequence[str]:
        return self._names.tags()

    def digest(self, tag: str) -> str | None:
        return self._names.digest(tag)

    def labels(self, digest: str) -> Mapping[str, str]:
        return self._names.labels(digest)

    def put_tag(self, tag: str, digest: str) -> None:
        self._names.put_tag(tag, digest)
        os.kill(os.getpid(), signal.SIGKILL)


def _name_and_die(host: str, image: SmallImage, tmp_path: Path) -> None:
    with client(host) as registry:
        name(image, 2, registry, tmp_path, store=DyingStore(RegistryNames(registry)))


def test_a_kill_between_the_two_names_is_completed_by_the_next_run(host: str, tmp_path: Path) -> None:
    old = make_image(tmp_path / "1.tar", 1, [b"one"])
    image = make_image(tmp_path / "2.tar", 2, [b"two"])
    with client(host) as registry:
        for item in (old, image):
            push(item, registry)
        name(old, 1, registry, tmp_path)
        process = multiprocessing.get_context("fork").Process(target=_name_and_die, args=(host, image, tmp_path))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        between = {"0.28.0-cpu-r1": old.digest, "0.28.0-cpu": old.digest, "0.28.0-cpu-r2": image.digest}
        assert tags_at(host) == between
        name(image, 2, registry, tmp_path)
    assert tags_at(host) == {**between, "0.28.0-cpu": image.digest}


def _race(host: str, image: SmallImage, tmp_path: Path, gate: Any, results: Any) -> None:
    with client(host) as registry:
        gate.wait()
        try:
            name(image, 1, registry, tmp_path)
            results.put((image.digest, "named"))
        except SeatrialError as error:
            results.put((image.digest, str(error)))


def test_of_two_builds_that_want_one_number_exactly_one_gets_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    rivals = [make_image(tmp_path / f"{index}.tar", 1, [b"rival %d" % index]) for index in range(4)]
    for turn in range(3):
        folder = tmp_path / f"registry{turn}"
        folder.mkdir()
        with registry_server(folder) as host:
            with client(host) as registry:
                for image in rivals:
                    push(image, registry)
            gate, results = context.Barrier(len(rivals)), context.Queue()
            racers = [
                context.Process(target=_race, args=(host, image, tmp_path / str(turn), gate, results))
                for image in rivals
            ]
            for racer in racers:
                racer.start()
            ended = dict(results.get(timeout=60) for _ in racers)
            for racer in racers:
                racer.join(60)
            winners = [digest for digest, how in ended.items() if how == "named"]
            assert len(winners) == 1
            assert all("already stands for" in how for digest, how in ended.items() if digest not in winners)
            assert tags_at(host) == {"0.28.0-cpu-r1": winners[0], "0.28.0-cpu": winners[0]}


# -- servers that are not well, certificates, logins


class Broken(BaseHTTPRequestHandler):
    """Answer 500 to everything."""

    def _broken(self) -> None:
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_POST = do_PUT = _broken

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_server_that_answers_500_is_one_clear_error(tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with client(f"127.0.0.1:{server.server_port}") as registry, pytest.raises(RegistryError) as caught:
            push(image, registry)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "answered 500" in caught.value.why
    assert "\n" not in str(caught.value)


def test_a_storage_that_fails_is_one_clear_error_and_no_name(host: str, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    storage = tmp_path / "registry" / "storage"
    storage.write_text("a file where the registry wants a folder")
    with client(host) as registry, pytest.raises(RegistryError) as caught:
        push(image, registry)
    assert host in caught.value.what
    storage.unlink()
    assert tags_at(host) == {}


def certificate(folder: Path) -> Path:
    """Write an authority of its own for 127.0.0.1 and return its file."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=seatrial test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt")),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "server.crt"


def test_an_authority_of_the_users_own_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    authority = certificate(tmp_path)
    with registry_server(tmp_path, scheme="https") as host:
        with client(host) as registry, pytest.raises(RegistryError, match="is not trusted") as caught:
            push(image, registry)
        assert "SSL_CERT_FILE" in caught.value.do
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        with client(host) as registry:
            assert push(image, registry).sent == image.size


def test_an_authority_in_dockers_own_folder_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    authority = certificate(tmp_path)
    monkeypatch.setattr(registry_http, "CERTS", tmp_path / "certs")
    with registry_server(tmp_path, scheme="https") as host:
        place = tmp_path / "certs" / host / "ca.crt"
        place.parent.mkdir(parents=True)
        shutil.copy(authority, place)
        with client(host) as registry:
            assert push(image, registry).sent == image.size
        place.write_text("nonsense")
        with pytest.raises(RegistryError, match=r"ca\.crt cannot be loaded"):
            client(host)


@contextlib.contextmanager
def guarded_registry(folder: Path) -> Iterator[str]:
    (folder / "htpasswd").write_text(HTPASSWD)
    more = f"auth:\n  htpasswd:\n    realm: seatrial-test\n    path: {folder}/htpasswd\n"
    with registry_server(folder, more=more) as host:
        yield host


def test_a_login_is_used_and_its_lack_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"])
    with guarded_registry(tmp_path) as host:
        for login in (None, Login("user", "wrong")):
            with client(host, login) as registry, pytest.raises(RegistryError, match="does not let") as caught:
                push(image, registry)
            assert f"docker login {host}" in caught.value.do
        helper = tmp_path / "bin" / "docker-credential-test"
        helper.parent.mkdir()
        helper.write_text(f"""#!/bin/sh
[ "$(cat)" = "{host}" ] || {{ echo "credentials not found in native keychain"; exit 1; }}
echo '{{"ServerURL": "{host}", "Username": "user", "Secret": "word"}}'
""")
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
        (tmp_path / "config.json").write_text(json.dumps({"credsStore": "test"}))
        assert read_login("elsewhere.example.org", tmp_path) is None
        with client(host, read_login(host, tmp_path)) as registry:
            assert push(image, registry).sent == image.size


def test_a_helpers_identity_token_is_told_from_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"h": "test"}, "credsStore": "missing-here"}))
    helper = tmp_path / "docker-credential-test"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for user, login in (("<token>", Login(identity_token="secret")), ("user", Login("user", "secret"))):
        helper.write_text(f"""#!/bin/sh\necho '{{"Username": "{user}", "Secret": "secret"}}'\n""")
        helper.chmod(0o755)
        assert read_login("h", tmp_path) == login


def test_a_credential_helper_that_fails_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"h": "missing-here"}}))
    with pytest.raises(RegistryError, match="does not work"):
        read_login("h", tmp_path)
    helper = tmp_path / "docker-credential-missing-here"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for script, words in (("exit 3", "failed with status 3"), ("echo nonsense", "answers nonsense")):
        helper.write_text(f"#!/bin/sh\n{script}\n")
        helper.chmod(0o755)
        with pytest.raises(RegistryError, match=words):
            read_login("h", tmp_path)
