from __future__ import annotations

import hashlib
import io
from collections import namedtuple
from pathlib import Path

import pytest

from seatrial.model.errors import DiskError, FetchError, IntegrityError
from seatrial.ports import files as files_port
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Found, Index, Pin, Target, Wanted
from seatrial.ports.parallel import in_parallel
from seatrial.ports.pip_config import PipConfig
from tests.fakeindex import FakeIndex, transport

WHEEL = "demo-1.0-py3-none-any.whl"
DATA = bytes(range(256)) * 100


class Bench:
    """An index over a fake one, with what it said and how long it would have slept."""

    def __init__(self, root: Path, fake: FakeIndex, **settings: object) -> None:
        self.fake = fake
        self.out = io.StringIO()
        self.console = Console(out=self.out)
        self.cache = Cache(root / "cache", self.console.detail)
        config = PipConfig(**{"index_urls": (f"{fake.host}/simple/",), "retries": 2, **settings})  # type: ignore[arg-type]
        self.index = Index(lambda: config, transport(fake))
        self.slept: list[float] = []
        self.index.session.sleep = self.slept.append

    def get(self, name: str = WHEEL, data: bytes = DATA, size: int | None = None) -> Path:
        wanted = Wanted("demo", name, hashlib.sha256(data).hexdigest(), size)
        return self.index.download(wanted, cache=self.cache, console=self.console)

    def leave_part(self, part: bytes, data: bytes = DATA) -> Path:
        path = self.cache.partial(hashlib.sha256(data).hexdigest())
        path.parent.mkdir(parents=True)
        path.write_bytes(part)
        return path


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    fake = FakeIndex()
    fake.add("demo", WHEEL, DATA)
    return Bench(tmp_path, fake)


# finding


@pytest.mark.parametrize("as_html", [False, True])
def test_the_files_of_one_release_are_found_with_their_hashes(bench: Bench, as_html: bool) -> None:
    bench.fake.as_html = as_html
    bench.fake.add("demo", "demo-1.0.tar.gz", b"sdist")
    bench.fake.add("demo", "demo-2.0-py3-none-any.whl", b"other")
    found = {each.filename: each for each in bench.index.find("Demo", "1.0.0")}
    assert set(found) == {WHEEL, "demo-1.0.tar.gz"}
    assert found[WHEEL].sha256 == hashlib.sha256(DATA).hexdigest()
    assert found[WHEEL].size == (None if as_html else len(DATA))
    assert bench.index.find("demo", "1.0", WHEEL) == [found[WHEEL]]
    assert len(bench.fake.asked("/simple/demo/")) == 1


def test_nothing_is_asked_before_something_is_wanted(tmp_path: Path) -> None:
    def never() -> PipConfig:
        raise AssertionError("settings were read")

    Index(never)


NAMES = [
    "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "demo-1.0-cp39-abi3-manylinux_2_28_x86_64.whl",
    "demo-1.0-py3-none-any.whl",
    "demo-1.0.tar.gz",
]
STRANGERS = [
    "demo-1.0-cp311-cp311-manylinux_2_39_x86_64.whl",
    "demo-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    "demo-1.0-cp311-cp311-musllinux_1_2_x86_64.whl",
    "demo-1.0-cp311-cp311-win_amd64.whl",
]


@pytest.mark.parametrize("best", range(len(NAMES)))
def test_the_best_file_that_runs_here_and_has_a_locked_hash_is_taken(tmp_path: Path, best: int) -> None:
    fake = FakeIndex()
    hashes = {name: fake.add("demo", name, name.encode()) for name in [*STRANGERS, *reversed(NAMES[best:])]}
    found = Bench(tmp_path, fake).index.find_by_hashes("demo", "1.0", set(hashes.values()))
    assert (found.filename, found.sha256) == (NAMES[best], hashes[NAMES[best]])


def test_a_better_file_without_a_locked_hash_is_left(tmp_path: Path) -> None:
    fake = FakeIndex()
    fake.add("demo", NAMES[0], b"not in the lock")
    locked = fake.add("demo", NAMES[3], b"in the lock")
    assert Bench(tmp_path, fake).index.find_by_hashes("demo", "1.0", [locked]).filename == NAMES[3]


def test_strangers_only_is_an_error_that_names_them(tmp_path: Path) -> None:
    fake = FakeIndex()
    hashes = [fake.add("demo", name, name.encode()) for name in STRANGERS]
    with pytest.raises(
        FetchError, match=r"no file of demo 1.0 suits.*offered: demo-1.0-cp311-cp311-manylinux_2_28_aarch"
    ):
        Bench(tmp_path, fake).index.find_by_hashes("demo", "1.0", hashes)


def test_another_target_takes_another_file(tmp_path: Path) -> None:
    fake = FakeIndex()
    hashes = [fake.add("demo", name, name.encode()) for name in [*NAMES, *STRANGERS]]
    index = Bench(tmp_path, fake).index
    assert index.find_by_hashes("demo", "1.0", hashes, Target(machine="aarch64")).filename == STRANGERS[1]
    assert index.find_by_hashes("demo", "1.0", hashes, Target(python="3.12")).filename == STRANGERS[2]


def test_a_page_without_hashes_is_read_through(tmp_path: Path) -> None:
    fake = FakeIndex(state_hashes=False)
    fake.add("demo", NAMES[0], b"not in the lock")
    locked = fake.add("demo", NAMES[3], b"in the lock")
    found = Bench(tmp_path, fake).index.find_by_hashes("demo", "1.0", [locked])
    assert (found.filename, found.sha256) == (NAMES[3], locked)


def test_find_links_folders_count_too(tmp_path: Path) -> None:
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "demo-1.0+cpu-py3-none-any.whl").write_bytes(b"local")
    bench = Bench(tmp_path, FakeIndex(), find_links=(str(folder),))
    sha = hashlib.sha256(b"local").hexdigest()
    found = bench.index.find_by_hashes("demo", "1.0+cpu", [sha])
    assert bench.index.download(Wanted.of(found), cache=bench.cache, console=bench.console).read_bytes() == b"local"
    assert bench.index.find("demo", "1.0") == []


def test_many_pins_keep_their_order_and_the_first_error_is_raised(tmp_path: Path) -> None:
    fake = FakeIndex()
    pins = []
    for number in range(30):
        sha = fake.add(f"demo{number}", f"demo{number}-1.0-py3-none-any.whl", b"%d" % number)
        pins.append(Pin(f"demo{number}", "1.0", frozenset([sha])))
    index = Bench(tmp_path, fake).index
    assert [found.distribution for found in index.find_many_by_hashes(pins)] == [pin.distribution for pin in pins]
    assert index.find_many_by_hashes([]) == []
    with pytest.raises(FetchError, match=r"no file of absent 1.0"):
        index.find_many_by_hashes([*pins, Pin("absent", "1.0", frozenset(["0" * 64]))])


def test_what_a_source_answered_is_said_without_its_credentials(tmp_path: Path) -> None:
    fake = FakeIndex(statuses={"/simple/": [403]})
    bench = Bench(tmp_path, fake, index_urls=("http://u:secret@127.0.0.1/simple/",))
    with pytest.raises(FetchError) as raised:
        bench.get()
    assert "answered 403" in str(raised.value)
    assert "check the credentials" in raised.value.do
    assert "secret" not in str(raised.value)


def test_credentials_in_the_index_url_are_used(tmp_path: Path) -> None:
    fake = FakeIndex(password="secret")
    fake.add("demo", WHEEL, DATA)
    assert Bench(tmp_path / "1", fake, index_urls=("http://u:secret@127.0.0.1/simple/",)).get().read_bytes() == DATA
    with pytest.raises(FetchError, match=r"answered 401"):
        Bench(tmp_path / "2", fake).get()


def test_credentials_in_netrc_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login u password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    fake = FakeIndex(password="secret")
    fake.add("demo", WHEEL, DATA)
    assert Bench(tmp_path, fake).get().read_bytes() == DATA


def test_plain_http_is_skipped_unless_its_host_is_trusted(tmp_path: Path) -> None:
    fake = FakeIndex(host="http://mirror.example")
    fake.add("demo", WHEEL, DATA)
    with pytest.raises(FetchError, match=r"mirror.example/simple/ is skipped: plain http"):
        Bench(tmp_path / "1", fake).get()
    assert fake.requests == []
    assert Bench(tmp_path / "2", fake, trusted_hosts=("mirror.example",)).get().read_bytes() == DATA


def test_a_page_is_asked_again_after_a_transient_answer(bench: Bench) -> None:
    bench.fake.statuses = {"/simple/demo/": [503, 429, 200]}
    assert bench.get().read_bytes() == DATA
    assert bench.slept == [0.25, 0.5]


# fetching


def test_a_file_is_fetched_once(bench: Bench) -> None:
    path = bench.get(size=len(DATA))
    assert (path.read_bytes(), path.name) == (DATA, WHEEL)
    assert bench.get() == path
    assert len(bench.fake.asked("/files/")) == 1
    assert bench.fake.asked("/files/")[0]["accept-encoding"] == "identity"


def test_a_partial_file_is_continued(bench: Bench) -> None:
    bench.leave_part(DATA[:7000])
    assert bench.get().read_bytes() == DATA
    assert [headers.get("range") for headers in bench.fake.asked("/files/")] == ["bytes=7000-"]


def test_a_break_is_continued_where_it_happened(bench: Bench) -> None:
    bench.fake.cuts = [5000, 3000, -1]
    assert bench.get().read_bytes() == DATA
    assert [headers.get("range") for headers in bench.fake.asked("/files/")] == [None, "bytes=5000-", "bytes=8000-"]
    assert "connection reset; continuing at" in bench.out.getvalue()


def test_breaks_that_bring_nothing_end_after_the_retries_and_leave_the_part(bench: Bench) -> None:
    bench.fake.cuts = [5000, 0, 0]
    with pytest.raises(FetchError, match=r"could not be fetched; .*connection reset; .*run the same again"):
        bench.get()
    assert bench.cache.partial(hashlib.sha256(DATA).hexdigest()).stat().st_size == 5000
    assert len(bench.fake.asked("/files/")) == 3
    assert bench.get().read_bytes() == DATA


def test_any_number_of_breaks_is_borne_while_bytes_come(bench: Bench) -> None:
    bench.fake.cuts = [1000] * 10 + [-1]
    assert bench.get().read_bytes() == DATA
    assert len(bench.fake.asked("/files/")) == 11


def test_a_shorter_file_of_unsaid_length_ends_after_the_retries(bench: Bench) -> None:
    bench.fake.lie_about[WHEEL] = b"y" * 1000
    bench.fake.state_length = False
    with pytest.raises(FetchError, match=r"could not be fetched"):
        bench.get(size=len(DATA))
    assert len(bench.fake.asked("/files/")) == 3


def test_a_server_without_ranges_starts_again_and_that_is_said(bench: Bench) -> None:
    bench.fake.ranges = False
    bench.leave_part(DATA[:7000])
    assert bench.get().read_bytes() == DATA
    assert "cannot resume, starting again at the first byte" in bench.out.getvalue()


@pytest.mark.parametrize("part", [b"x" * 7000, b"x" * len(DATA), b"x" * (len(DATA) + 1)])
@pytest.mark.parametrize("sized", [True, False])
def test_a_part_with_wrong_bytes_is_thrown_away_and_fetched_again(bench: Bench, part: bytes, sized: bool) -> None:
    bench.fake.state_sizes = sized
    bench.leave_part(part)
    assert bench.get(size=len(DATA) if sized else None).read_bytes() == DATA
    said = bench.out.getvalue()
    assert "do not fit: thrown away" in said or "does not continue" in said


def test_a_whole_part_needs_no_request(bench: Bench) -> None:
    bench.leave_part(DATA)
    assert bench.get().read_bytes() == DATA
    assert bench.fake.asked("/files/") == []


def test_wrong_bytes_are_thrown_away_and_refused(bench: Bench) -> None:
    bench.fake.lie_about[WHEEL] = b"y" * len(DATA)
    with pytest.raises(IntegrityError, match=r"other bytes than its lock says: thrown away; .*expected"):
        bench.get()
    assert not bench.cache.partial(hashlib.sha256(DATA).hexdigest()).exists()
    assert bench.cache.get(hashlib.sha256(DATA).hexdigest()) is None
    assert len(bench.fake.asked("/files/")) == 1


def test_another_length_is_refused_before_it_is_read(bench: Bench) -> None:
    bench.fake.lie_about[WHEEL] = b"y" * 10
    with pytest.raises(IntegrityError, match=rf"has 10 bytes at its source and {len(DATA)} in its lock"):
        bench.get(size=len(DATA))


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (403, 1), (500, 3)])
def test_a_refusal_is_one_line(bench: Bench, status: int, tries: int) -> None:
    bench.fake.statuses = {"/files/": [status]}
    with pytest.raises(FetchError, match=rf"{WHEEL} could not be fetched; .*answered {status}"):
        bench.get()
    assert len(bench.fake.asked("/files/")) == tries


def test_redirects_are_followed(bench: Bench) -> None:
    bench.fake.files["demo"]["moved.whl"] = DATA
    bench.fake.redirects[f"/files/{WHEEL}"] = "/files/moved.whl"
    assert bench.get().name == WHEEL


def test_what_no_source_offers_is_said(bench: Bench) -> None:
    with pytest.raises(FetchError, match=r"demo-9-py3-none-any\.whl is on none of the configured indexes"):
        bench.get("demo-9-py3-none-any.whl")


def test_a_file_with_another_stated_hash_is_not_even_fetched(bench: Bench) -> None:
    with pytest.raises(FetchError, match=r"is offered with other bytes only; .*the lock says"):
        bench.get(data=b"what the lock wants")
    assert bench.fake.asked("/files/") == []


def test_a_full_disk_is_seen_before_the_fetch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(files_port.shutil, "disk_usage", lambda path: usage(1, 1, 1000))
    with pytest.raises(DiskError, match=r"0.0 GB are free"):
        bench.get()


def many(fake: FakeIndex, count: int) -> list[Wanted]:
    asked = []
    for number in range(count):
        data = b"%d" % number * 1000
        name = f"demo-{number}-py3-none-any.whl"
        asked.append(Wanted("demo", name, fake.add("demo", name, data)))
    return asked


@pytest.mark.parametrize("sized", [True, False])
def test_many_files_come_in_the_order_asked(bench: Bench, sized: bool) -> None:
    bench.fake.state_sizes = sized
    asked = many(bench.fake, 20)
    twice = [*asked, asked[0]]
    paths = bench.index.fetch_many(twice, cache=bench.cache, console=bench.console)
    assert [path.name for path in paths] == [item.filename for item in twice]
    assert len(bench.fake.asked("/files/")) == 20
    assert bench.index.fetch_many(twice, cache=bench.cache, console=bench.console) == paths
    assert len(bench.fake.asked("/files/")) == 20
    assert bench.index.fetch_many([], cache=bench.cache, console=bench.console) == []


def test_the_first_error_stops_the_rest_and_keeps_what_came(bench: Bench) -> None:
    asked = many(bench.fake, 40)
    bench.fake.lie_about[asked[13].filename] = b"wrong" * 200
    with pytest.raises(IntegrityError, match=r"demo-13-py3-none-any\.whl has"):
        bench.index.fetch_many(asked, cache=bench.cache, console=bench.console, parallel=2)
    assert any(bench.cache.get(item.sha256) for item in asked)
    assert len(bench.fake.asked("/files/")) < 40
    bench.fake.lie_about.clear()
    assert len(bench.index.fetch_many(asked, cache=bench.cache, console=bench.console)) == 40


def test_urls_are_shown_without_credentials() -> None:
    assert (
        Found("d", "1", "d-1.whl", "https://u:secret@h.example/d-1.whl", None).shown == "https://****@h.example/d-1.whl"
    )


def test_after_an_error_nothing_new_begins() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise FetchError("two")

    with pytest.raises(FetchError, match=r"two"):
        in_parallel(work, range(500), 1)
    assert begun == [0, 1, 2]
