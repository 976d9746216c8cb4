"""The registry client against answers that a registry should not give."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from seatrial.model.errors import IntegrityError, RegistryError, UsageError
from seatrial.ports.registry import Manifest, Registry, digest_of_bytes
from seatrial.ports.registry_http import TRIES, Target, parse_target
from seatrial.ports.registry_login import Login, config_folder, read_login

REMOTE = Target("registry.example.org", "team/vllm")
LOCAL = Target("localhost:5000", "vllm")
DATA = b"layer" * 1000
BLOB = digest_of_bytes(DATA)
MANIFEST = Manifest(b'{"schemaVersion": 2}', "application/vnd.oci.image.manifest.v1+json")
Handler = Callable[[httpx.Request], httpx.Response]


class Waits(list[float]):
    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def registry(
    handler: Handler, *, target: Target = REMOTE, login: Login | None = None, waits: Waits | None = None
) -> Registry:
    return Registry(
        target,
        login,
        plain=target.loopback,
        transport=httpx.MockTransport(handler),
        sleep=waits if waits is not None else Waits(),
    )


def chunks(data: bytes = DATA) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([data[:100], data[100:]])


# -- where it is


@pytest.mark.parametrize(
    ("text", "host", "repository"),
    [
        ("localhost/vllm", "localhost", "vllm"),
        ("localhost:5000/team/vllm", "localhost:5000", "team/vllm"),
        ("registry.example.org/a/b-c/d_e.f", "registry.example.org", "a/b-c/d_e.f"),
        ("[::1]:5000/vllm", "[::1]:5000", "vllm"),
    ],
)
def test_a_target_is_read(text: str, host: str, repository: str) -> None:
    target = parse_target(text)
    assert (target.host, target.repository, str(target)) == (host, repository, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm", "names no registry"),
        ("team/vllm", "names no registry"),
        ("", "names no registry"),
        ("https://registry.example.org/vllm", "names no registry"),
        ("user@registry.example.org/vllm", "names no registry"),
        ("registry.example.org/vllm:latest", "holds a tag"),
        (f"registry.example.org/vllm@{BLOB}", "holds a tag"),
        ("registry.example.org/vllm@latest", "holds a tag"),
        ("registry.example.org/", "is no repository"),
        ("registry.example.org/VLLM", "is no repository"),
        ("registry.example.org/../vllm", "is no repository"),
        ("registry.example.org/a//b", "is no repository"),
    ],
)
def test_a_target_that_is_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_target(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.8.0.1", True),
        ("[::1]", True),
        ("[::1]:5000", True),
        ("10.0.0.1:5000", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_only_loopback_is_spoken_to_in_the_clear(host: str, loopback: bool) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.scheme)
        return httpx.Response(404)

    target = Target(host, "vllm")
    assert target.loopback == loopback
    Registry(target, plain=True, transport=httpx.MockTransport(answer)).manifest("x")
    assert seen == ["http" if loopback else "https"]


@pytest.mark.parametrize(
    ("target", "plain", "asked"),
    [
        (REMOTE, None, "https://registry.example.org/v2/team/vllm/manifests/x"),
        (LOCAL, False, "https://localhost:5000/v2/vllm/manifests/x"),
        (LOCAL, True, "http://localhost:5000/v2/vllm/manifests/x"),
        (Target("docker.io", "team/vllm"), None, "https://registry-1.docker.io/v2/team/vllm/manifests/x"),
    ],
)
def test_the_address_is_the_targets(target: Target, plain: bool | None, asked: str) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(404)

    Registry(target, plain=plain, transport=httpx.MockTransport(answer)).manifest("x")
    assert seen == [asked]


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_a_registry_on_loopback_is_asked_what_it_speaks(speaks_tls: bool) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.scheme == "https" and not speaks_tls:
            raise httpx.ConnectError("wrong version number", request=request)
        seen.append(request.url.scheme)
        return httpx.Response(404)

    Registry(LOCAL, transport=httpx.MockTransport(answer)).manifest("x")
    assert seen[-1] == ("https" if speaks_tls else "http")


# -- failures


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_registry_that_stays_broken_is_one_clear_line(status: int) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(status, json={"errors": [{"code": "UNKNOWN", "message": "disk on fire"}]})

    waits = Waits()
    with pytest.raises(RegistryError) as caught:
        registry(answer, waits=waits).manifest("latest")
    assert len(asked) == TRIES
    assert waits == sorted(waits)
    assert len(waits) == TRIES - 1
    line = str(caught.value)
    assert "\n" not in line
    for words in ("registry.example.org", str(status), "UNKNOWN disk on fire", f"{TRIES} tries"):
        assert words in line


def test_a_registry_that_recovers_is_used() -> None:
    answers = iter([httpx.Response(500), httpx.Response(503, headers={"Retry-After": "7"}), httpx.Response(404)])
    waits = Waits()
    assert registry(lambda request: next(answers), waits=waits).manifest("x") is None
    assert waits == [0.5, 7.0]


def test_a_long_wait_that_is_asked_for_has_a_limit() -> None:
    answers = iter([httpx.Response(429, headers={"Retry-After": "999999"}), httpx.Response(404)])
    waits = Waits()
    registry(lambda request: next(answers), waits=waits).manifest("x")
    assert waits == [30.0]


def test_a_connection_that_breaks_is_tried_again_and_then_given_up() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with pytest.raises(RegistryError) as caught:
        registry(answer).tags()
    assert caught.value.what.endswith("did not list its tags")
    assert "connection refused" in caught.value.why


def test_an_untrusted_certificate_is_not_tried_again() -> None:
    asked: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(1)
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", request=request)

    with pytest.raises(RegistryError, match=r"certificate of registry\.example\.org is not trusted") as caught:
        registry(answer).tags()
    assert len(asked) == 1
    assert "SSL_CERT_FILE" in caught.value.do


def test_a_refusal_is_not_tried_again() -> None:
    asked: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(1)
        return httpx.Response(400, json={"errors": [{"code": "MANIFEST_INVALID"}]})

    with pytest.raises(RegistryError, match="refused") as caught:
        registry(answer).put_manifest(MANIFEST)
    assert len(asked) == 1
    assert "MANIFEST_INVALID" in caught.value.why


# -- other bytes than were asked for


def test_other_bytes_under_a_digest_are_seen() -> None:
    with pytest.raises(RegistryError, match="other bytes"):
        registry(lambda request: httpx.Response(200, content=b"{}")).manifest(MANIFEST.digest)


def test_a_digest_header_that_does_not_fit_is_seen() -> None:
    headers = {"Docker-Content-Digest": BLOB}
    with pytest.raises(RegistryError, match="other bytes"):
        registry(lambda request: httpx.Response(200, content=MANIFEST.data, headers=headers)).manifest("latest")


def test_a_digest_header_that_does_not_fit_right_bytes_is_seen() -> None:
    headers = {"Docker-Content-Digest": BLOB}
    with pytest.raises(RegistryError, match="other bytes"):
        registry(lambda request: httpx.Response(200, content=MANIFEST.data, headers=headers)).manifest(MANIFEST.digest)


@pytest.mark.parametrize("data", [b"", b"[]", b"{"])
def test_a_manifest_that_is_no_object_is_one_clear_error(data: bytes) -> None:
    assert MANIFEST.parsed() == {"schemaVersion": 2}
    with pytest.raises(RegistryError, match="is not a JSON object"):
        Manifest(data, MANIFEST.media_type).parsed()


def test_other_bytes_of_a_blob_are_seen() -> None:
    with pytest.raises(RegistryError, match="other bytes"):
        registry(lambda request: httpx.Response(200, content=b"{}")).small_blob(BLOB)


def test_a_manifest_that_was_not_kept_is_seen() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(201 if request.method == "PUT" else 404)

    with pytest.raises(RegistryError, match="does not stand for what was just stored") as caught:
        registry(answer).put_tag("0.28.0-cpu-r1", MANIFEST)
    assert caught.value.why.endswith("found nothing")


def test_a_name_that_somebody_else_took_meanwhile_is_seen() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(201) if request.method == "PUT" else httpx.Response(200, content=b'{"other": 1}')

    with pytest.raises(RegistryError, match="does not stand for what was just stored") as caught:
        registry(answer).put_tag("0.28.0-cpu-r1", MANIFEST)
    other = digest_of_bytes(b'{"other": 1}')
    assert caught.value.why.endswith(f"found {other}")


def test_a_manifest_is_stored_as_it_is() -> None:
    held: dict[str, bytes] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        reference = request.url.path.rpartition("/")[2]
        if request.method == "PUT":
            assert request.headers["content-type"] == MANIFEST.media_type
            held[reference] = request.read()
            return httpx.Response(201)
        return httpx.Response(200, content=held[reference]) if reference in held else httpx.Response(404)

    registry(answer).put_manifest(MANIFEST)
    registry(answer).put_tag("0.28.0-cpu-r1", MANIFEST)
    assert held == {MANIFEST.digest: MANIFEST.data, "0.28.0-cpu-r1": MANIFEST.data}


def test_an_answer_without_end_is_cut() -> None:
    with pytest.raises(RegistryError, match="sends more than"):
        registry(lambda request: httpx.Response(200, content=b"x" * (5 << 20))).manifest("latest")


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense"])
def test_tags_that_are_nonsense_are_one_clear_error(body: bytes) -> None:
    with pytest.raises(RegistryError, match="nonsense"):
        registry(lambda request: httpx.Response(200, content=body)).tags()


def test_tags_come_page_by_page_and_end_somewhere() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.params.get("last") == "b":
            return httpx.Response(200, json={"tags": ["c"]})
        link = {"Link": '</v2/team/vllm/tags/list?n=2&last=b>; rel="next"'}
        return httpx.Response(200, json={"tags": ["a", "b"]}, headers=link)

    assert registry(answer).tags() == ["a", "b", "c"]
    link = {"Link": '</v2/team/vllm/tags/list?n=1>; rel="next"'}
    with pytest.raises(RegistryError, match="does not come to an end"):
        registry(lambda request: httpx.Response(200, json={"tags": ["a"]}, headers=link)).tags()


def test_no_repository_has_no_tags() -> None:
    assert registry(lambda request: httpx.Response(404)).tags() == []
    assert registry(lambda request: httpx.Response(200, json={"tags": None})).tags() == []


def test_a_blob_that_lies_elsewhere_is_followed_without_the_login() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.url.host != REMOTE.host:
            return httpx.Response(200, content=DATA)
        if "authorization" not in request.headers:
            return httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        return httpx.Response(307, headers={"Location": "https://storage.example.net/blob"})

    assert registry(answer, login=Login("user", "word")).small_blob(BLOB) == DATA
    assert seen[-1].url.host == "storage.example.net"
    assert "authorization" not in seen[-1].headers


# -- uploads


class Store:
    """A registry that takes uploads, with an upload place of its choice."""

    def __init__(self, location: str = "/v2/team/vllm/blobs/uploads/1?_state=a%2Bb%3D%3D") -> None:
        self.blobs: dict[str, bytes] = {}
        self.location = location
        self.puts: list[httpx.Request] = []
        self.trouble: list[httpx.Response] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            return httpx.Response(200 if request.url.path.rpartition("/")[2] in self.blobs else 404)
        if request.method == "POST":
            return httpx.Response(202, headers={"Location": self.location} if self.location else {})
        self.puts.append(request)
        body = request.read()
        if self.trouble:
            return self.trouble.pop(0)
        self.blobs[request.url.params["digest"]] = body
        return httpx.Response(201, headers={"Docker-Content-Digest": request.url.params["digest"]})


def test_a_blob_is_sent_once() -> None:
    store = Store()
    client = registry(store)
    assert client.upload(BLOB, len(DATA), chunks()) is True
    assert client.upload(BLOB, len(DATA), chunks()) is False
    assert store.blobs == {BLOB: DATA}
    (put,) = store.puts
    assert put.headers["content-length"] == str(len(DATA))
    assert "transfer-encoding" not in put.headers
    assert put.url.query == f"_state=a%2Bb%3D%3D&digest={BLOB.replace(':', '%3A')}".encode()


@pytest.mark.parametrize("trouble", [httpx.Response(500), httpx.Response(404), httpx.Response(503)])
def test_an_upload_that_breaks_starts_again(trouble: httpx.Response) -> None:
    store = Store()
    store.trouble = [trouble]
    assert registry(store).upload(BLOB, len(DATA), chunks()) is True
    assert store.blobs == {BLOB: DATA}
    assert len(store.puts) == 2


def test_a_damaged_local_copy_is_never_sent_whole() -> None:
    store = Store()
    with pytest.raises(IntegrityError, match="local copy"):
        registry(store).upload(BLOB, len(DATA), chunks(DATA[:-1] + b"X"))
    assert store.blobs == {}


@pytest.mark.parametrize("location", ["", "http://h:port/"])
def test_an_upload_without_a_place_is_one_clear_error(location: str) -> None:
    with pytest.raises(RegistryError, match="opened an upload"):
        registry(Store(location)).upload(BLOB, len(DATA), chunks())


def test_the_login_is_not_sent_to_another_host() -> None:
    store = Store("https://storage.example.net/upload?sig=1")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == REMOTE.host and "authorization" not in request.headers:
            return httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        return store(request)

    registry(answer, login=Login("user", "word")).upload(BLOB, len(DATA), chunks())
    (put,) = store.puts
    assert put.url.host == "storage.example.net"
    assert "authorization" not in put.headers


# -- logins


def guarded(realm: str, seen: list[httpx.Request], *, token: str | None = "secret") -> Handler:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/token":
            seen.append(request)
            return httpx.Response(200, json={"token": token}) if token else httpx.Response(401)
        if request.headers.get("authorization") != f"Bearer {token}":
            challenge = f'Bearer realm="{realm}",service="reg",scope="repository:team/vllm:pull,push"'
            return httpx.Response(401, headers={"WWW-Authenticate": challenge})
        return httpx.Response(404)

    return answer


def test_a_token_is_fetched_with_the_login_and_kept() -> None:
    seen: list[httpx.Request] = []
    client = registry(guarded("https://auth.example.org/token", seen), login=Login("user", "word"))
    assert client.manifest("a") is None
    assert client.manifest("b") is None
    assert client.manifest("c") is None
    (asked,) = seen
    assert dict(asked.url.params) == {"service": "reg", "scope": "repository:team/vllm:pull,push"}
    assert asked.headers["authorization"] == "Basic " + base64.b64encode(b"user:word").decode()


def test_an_identity_token_is_exchanged() -> None:
    seen: list[httpx.Request] = []
    client = registry(guarded("https://auth.example.org/token", seen), login=Login(identity_token="idt"))
    client.manifest("a")
    assert seen[0].method == "POST"
    assert b"refresh_token=idt" in seen[0].content


def test_a_login_is_never_sent_in_the_clear_over_a_network() -> None:
    seen: list[httpx.Request] = []
    client = registry(guarded("http://auth.example.org/token", seen), login=Login("user", "word"))
    with pytest.raises(RegistryError, match="cannot be trusted"):
        client.manifest("a")
    assert seen == []


@pytest.mark.parametrize("realm", ["ftp://localhost/token", "", "file:///token"])
def test_a_realm_that_is_no_web_address_is_refused(realm: str) -> None:
    client = registry(guarded(realm, []), target=LOCAL, login=Login("user", "word"))
    with pytest.raises(RegistryError, match=f"cannot be trusted: {realm or 'none'}"):
        client.manifest("a")


def test_a_registry_on_loopback_may_have_its_token_service_there() -> None:
    seen: list[httpx.Request] = []
    client = registry(guarded("http://localhost:5001/token", seen), target=LOCAL, login=Login("user", "word"))
    assert client.manifest("a") is None
    assert len(seen) == 1


def test_a_challenge_of_an_unknown_kind_is_a_missing_login() -> None:
    headers = {"WWW-Authenticate": 'Negotiate realm="x"'}
    with pytest.raises(RegistryError, match="does not let this user in"):
        registry(lambda request: httpx.Response(401, headers=headers), login=Login("user", "word")).manifest("a")


def test_a_refused_login_says_what_to_do_and_not_the_password() -> None:
    seen: list[httpx.Request] = []
    client = registry(guarded("https://auth.example.org/token", seen, token=None), login=Login("user", "word"))
    with pytest.raises(RegistryError) as caught:
        client.manifest("a")
    assert "docker login" in caught.value.do
    assert "word" not in str(caught.value)
    assert "word" not in repr(Login("user", "word"))


@pytest.mark.parametrize("status", [401, 403])
def test_no_login_says_what_to_do(status: int) -> None:
    with pytest.raises(RegistryError, match="does not let this user in") as caught:
        registry(lambda request: httpx.Response(status)).manifest("a")
    assert "docker login registry.example.org" in caught.value.do


def test_a_token_service_that_is_down_is_tried_again() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/token":
            return httpx.Response(503)
        return httpx.Response(401, headers={"WWW-Authenticate": 'Bearer realm="https://auth.example.org/token"'})

    waits = Waits()
    with pytest.raises(RegistryError, match="did not") as caught:
        registry(answer, waits=waits).manifest("a")
    assert "token service auth.example.org answered 503" in caught.value.why
    assert len(waits) == TRIES - 1


def config(folder: Path, data: object) -> Path:
    (folder / "config.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return folder


def test_logins_are_read_as_docker_leaves_them(tmp_path: Path) -> None:
    auth = base64.b64encode(b"user:wo:rd").decode()
    assert read_login("h", tmp_path) is None
    assert read_login("h", config(tmp_path, {"auths": {"other": {"auth": auth}}})) is None
    assert read_login("h", config(tmp_path, {"auths": {"h": {"auth": auth}}})) == Login("user", "wo:rd")
    assert read_login("h", config(tmp_path, {"auths": {"https://h/v1/": {"auth": auth}}})) == Login("user", "wo:rd")
    assert read_login("h", config(tmp_path, {"auths": {"h": {"identitytoken": "t"}}})) == Login(identity_token="t")
    assert read_login("h", config(tmp_path, {"auths": {"h": {}}})) is None


@pytest.mark.parametrize("data", ["{", [], {"auths": {"h": {"auth": "%%%"}}}, {"auths": {"h": {"auth": "dXNlcg=="}}}])
def test_a_malformed_login_is_one_clear_error(tmp_path: Path, data: object) -> None:
    with pytest.raises(RegistryError) as caught:
        read_login("h", config(tmp_path, data))
    assert "docker login h" in caught.value.do


def test_dockers_configuration_is_looked_for_where_docker_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "there"))
    assert config_folder() == tmp_path / "there"
    monkeypatch.delenv("DOCKER_CONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_folder() == tmp_path / ".docker"


def test_the_login_of_dockers_own_registry_has_a_key_of_its_own(tmp_path: Path) -> None:
    auth = base64.b64encode(b"user:word").decode()
    config(tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": auth}}})
    assert read_login("docker.io", tmp_path) == Login("user", "word")
    assert read_login("elsewhere.example.org", tmp_path) is None


def test_the_digest_of_bytes_is_sha256() -> None:
    assert digest_of_bytes(b"x") == "sha256:" + hashlib.sha256(b"x").hexdigest()
