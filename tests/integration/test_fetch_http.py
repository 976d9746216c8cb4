"""Finding and fetching over real sockets, by the real pip's configuration, also when processes die."""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from seatrial.model.errors import FetchError, IntegrityError
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index, Wanted, open_index
from seatrial.ports.ranges import HttpRanges
from tests.fakeindex import FakeIndex
from tests.loopback import Loopback, serve

WHEEL = "demo-1.0-py3-none-any.whl"
DATA = random.Random(1).randbytes(8 << 20)
SHA = hashlib.sha256(DATA).hexdigest()

FETCH = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by inheritance where this runs in the background
from pathlib import Path
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Wanted, open_index
console = Console()
wanted = [Wanted("demo", name, sha) for name, sha in (item.split("=") for item in sys.argv[2:])]
cache = Cache(Path(sys.argv[1]), console.line)
print(open_index().fetch_many(wanted, cache=cache, console=console), flush=True)
"""


@pytest.fixture
def served() -> Iterator[Loopback]:
    fake = FakeIndex()
    fake.add("demo", WHEEL, DATA)
    with serve(fake) as loopback:
        yield loopback


class User:
    """Somebody with a pip configuration of their own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.cache = Cache(root / "cache")
        self.out = io.StringIO()
        self.console = Console(out=self.out)
        for name in list(os.environ):
            if name.startswith(("PIP_", "SSL_CERT")) or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(root / "home"))
        monkeypatch.setenv("XDG_CONFIG_DIRS", str(root / "no-site-configuration"))
        monkeypatch.setenv("PIP_CONFIG_FILE", str(root / "pip.conf"))

    def configure(self, **settings: str) -> Index:
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in settings.items()]
        (self.root / "pip.conf").write_text("\n".join(["[global]", "retries = 2", "timeout = 20", *lines, ""]))
        index = open_index()
        index.session.sleep = lambda seconds: None
        return index

    def get(self, index: Index, size: int | None = None) -> Path:
        return index.download(Wanted("demo", WHEEL, SHA, size), cache=self.cache, console=self.console)

    def process(self, *items: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", FETCH, str(self.cache.root), *items]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    return User(tmp_path, monkeypatch)


def wait_for(condition: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.01)


def test_a_file_comes_once_whole(user: User, served: Loopback) -> None:
    index = user.configure(index_url=served.simple)
    assert user.get(index).read_bytes() == DATA
    assert user.get(index).read_bytes() == DATA
    assert len(served.fake.asked("/files/")) == 1


def test_broken_connections_are_continued(user: User, served: Loopback) -> None:
    served.fake.cuts = [3_000_000, 1_000_000, -1]
    assert user.get(user.configure(index_url=served.simple), len(DATA)).read_bytes() == DATA
    assert [each.get("range") for each in served.fake.asked("/files/")] == [None, "bytes=3000000-", "bytes=4000000-"]


def test_redirects_are_followed_and_ranges_survive_them(user: User, served: Loopback) -> None:
    served.fake.files["demo"]["moved-1.whl"] = DATA
    served.fake.redirects[f"/files/{WHEEL}"] = "/files/moved-1.whl"
    served.fake.cuts = [3_000_000, -1]
    assert user.get(user.configure(index_url=served.simple)).read_bytes() == DATA
    assert served.fake.asked("/files/moved")[-1]["range"] == "bytes=3000000-"


def test_wrong_bytes_404_and_nobody_there_are_each_one_line(user: User, served: Loopback) -> None:
    index = user.configure(index_url=served.simple)
    served.fake.lie_about[WHEEL] = DATA[:-1] + b"!"
    with pytest.raises(IntegrityError, match=r"thrown away"):
        user.get(index)
    served.fake.statuses = {"/files/": [404]}
    with pytest.raises(FetchError, match=r"answered 404"):
        user.get(index)
    with pytest.raises(FetchError, match=r"Connection refused"):
        user.get(user.configure(index_url="http://127.0.0.1:9/simple/"))
    assert list(user.cache.root.rglob("*.whl")) == []


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_fetch_is_continued_by_the_next(user: User, served: Loopback, death: signal.Signals) -> None:
    user.configure(index_url=served.simple)
    served.pause = 0.02
    first = user.process(f"{WHEEL}={SHA}")
    part = user.cache.partial(SHA)
    wait_for(lambda: part.exists() and part.stat().st_size > 1_000_000)
    first.send_signal(death)
    out, _ = first.communicate(timeout=60)
    assert first.returncode != 0, out
    kept = part.stat().st_size
    assert 1_000_000 < kept < len(DATA)
    served.pause = 0.0
    second = user.process(f"{WHEEL}={SHA}")
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 0, out
    assert served.fake.asked("/files/")[-1]["range"] == f"bytes={kept}-"
    path = user.cache.get(SHA, len(DATA))
    assert path is not None and not part.exists()


def test_two_processes_fetch_a_file_once(user: User, served: Loopback) -> None:
    user.configure(index_url=served.simple)
    served.pause = 0.02
    both = [user.process(f"{WHEEL}={SHA}") for _ in range(2)]
    outs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outs
    assert len(served.fake.asked("/files/")) == 1
    assert any("waiting for another fetch" in out for out in outs)


def test_many_files_come_in_parallel(user: User, served: Loopback) -> None:
    items = []
    for number in range(24):
        data = random.Random(number).randbytes(300_000)
        items.append(
            (f"demo-{number}-py3-none-any.whl", served.fake.add("demo", f"demo-{number}-py3-none-any.whl", data))
        )
    served.fake.cuts = [-1, 1000, -1, 200_000]
    index = user.configure(index_url=served.simple)
    wanted = [Wanted("demo", name, sha) for name, sha in items]
    paths = index.fetch_many(wanted, cache=user.cache, console=user.console, parallel=8)
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths] == [sha for _, sha in items]


def test_ranges_over_a_real_socket(user: User, served: Loopback) -> None:
    ranges = HttpRanges(user.configure(index_url=served.simple).session, f"{served.fake.host}/files/{WHEEL}")
    assert ranges.size == len(DATA)
    assert ranges.read_range(1234, 5678) == DATA[1234:6912]
    assert ranges.traffic == 1 + 5678


# the user's pip configuration


def test_extra_index_find_links_folder_and_file_index(user: User, served: Loopback, tmp_path: Path) -> None:
    site = tmp_path / "site" / "demo"
    site.mkdir(parents=True)
    (site / WHEEL).write_bytes(DATA)
    (site / "index.html").write_text(f'<a href="{WHEEL}#sha256={SHA}">{WHEEL}</a>')
    empty = f"{served.fake.host}/empty/"
    file_index = user.configure(index_url=empty, extra_index_url=f"{(tmp_path / 'site').as_uri()}")
    assert user.get(file_index, len(DATA)).read_bytes() == DATA
    user.cache = Cache(tmp_path / "cache2")
    assert user.get(user.configure(index_url=empty, find_links=str(site))).read_bytes() == DATA
    user.cache = Cache(tmp_path / "cache3")
    assert user.get(user.configure(index_url=empty, extra_index_url=served.simple)).read_bytes() == DATA


def test_environment_variables_win_over_the_file(user: User, served: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", served.simple)
    assert user.get(user.configure(index_url="http://127.0.0.1:9/simple/")).read_bytes() == DATA


def test_a_proxy_is_used(user: User, served: Loopback) -> None:
    index = user.configure(
        index_url="http://index.invalid/simple/", trusted_host="index.invalid", proxy=served.fake.host
    )
    host, served.fake.host = served.fake.host, "http://index.invalid"
    assert user.get(index).read_bytes() == DATA
    assert served.fake.requests[0][1]["host"] == "index.invalid"
    dead = user.configure(index_url=f"{host}/simple/", proxy="http://127.0.0.1:9")
    user.cache = Cache(user.root / "cache2")
    with pytest.raises(FetchError, match=r"Connection refused"):
        user.get(dead)


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    made.issue_cert("me@seatrial.test").private_key_and_cert_chain_pem.write_to_path(tmp_path / "me.pem")
    return made


def tls_for(authority: trustme.CA, *, want_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    if want_client:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_a_private_authority_is_trusted_when_pip_names_it(user: User, authority: trustme.CA, tmp_path: Path) -> None:
    fake = FakeIndex()
    fake.add("demo", WHEEL, DATA)
    with serve(fake, tls=tls_for(authority), host="localhost") as served:
        with pytest.raises(FetchError, match=r"CERTIFICATE_VERIFY_FAILED.*pip config set global\.cert"):
            user.get(user.configure(index_url=served.simple))
        assert fake.requests == []
        assert user.get(user.configure(index_url=served.simple, cert=str(tmp_path / "ca.pem"))).read_bytes() == DATA
        user.cache = Cache(tmp_path / "cache2")
        assert user.get(user.configure(index_url=served.simple, trusted_host="localhost")).read_bytes() == DATA


def test_a_client_certificate_is_shown(user: User, authority: trustme.CA, tmp_path: Path) -> None:
    fake = FakeIndex()
    fake.add("demo", WHEEL, DATA)
    with serve(fake, tls=tls_for(authority, want_client=True), host="localhost") as served:
        settings = {"index_url": served.simple, "cert": str(tmp_path / "ca.pem")}
        with pytest.raises(FetchError):
            user.get(user.configure(**settings))
        assert user.get(user.configure(**settings, client_cert=str(tmp_path / "me.pem"))).read_bytes() == DATA


def test_a_certificate_that_is_none_is_one_line(user: User, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing\n")
    with pytest.raises(FetchError, match=r"cannot be loaded"):
        user.configure(cert=str(tmp_path / "no.pem"))


def test_credentials_never_reach_the_screen(user: User, served: Loopback) -> None:
    served.fake.password = "secret"
    good = served.simple.replace("://", "://u:secret@")
    served.fake.cuts = [1_000_000, -1]
    assert user.get(user.configure(index_url=good)).read_bytes() == DATA
    assert "continuing at" in user.out.getvalue() and "secret" not in user.out.getvalue()
    served.fake.password = "changed"
    user.cache = Cache(user.root / "cache2")
    with pytest.raises(FetchError) as raised:
        user.get(user.configure(index_url=good.replace("secret", "hunter2")))
    assert "answered 401" in str(raised.value) and "hunter2" not in str(raised.value)
