from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest

from seatrial.model.errors import IntegrityError
from seatrial.ports.cache import Cache, default_root

DATA = b"some bytes"
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, said: list[str]) -> Cache:
    return Cache(tmp_path, said.append)


def put(cache: Cache, data: bytes = DATA, sha: str = SHA) -> Path:
    part = cache.partial(sha)
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(data)
    return cache.admit(part, sha, "a-1.whl")


def test_a_file_stands_under_its_digest_and_keeps_its_name(cache: Cache) -> None:
    path = put(cache)
    assert path == cache.root / "sha256" / SHA[:2] / SHA / "a-1.whl"
    assert path.read_bytes() == DATA
    assert not cache.partial(SHA).exists()
    assert cache.get(SHA, len(DATA)) == path == cache.get(SHA)


def test_what_is_not_there_is_none(cache: Cache) -> None:
    assert cache.get(SHA) is None


@pytest.mark.parametrize("damage", [b"some bytEs", b"some", b"some bytes and more", b""])
def test_a_damaged_file_is_thrown_away_and_that_is_said(cache: Cache, said: list[str], damage: bytes) -> None:
    path = put(cache)
    path.write_bytes(damage)
    assert cache.get(SHA, len(DATA)) is None
    assert not path.exists()
    assert said == ["a-1.whl in the cache does not hold its bytes any more: thrown away"]


def test_a_wrong_size_beside_a_right_digest_blames_the_lock_and_keeps_the_file(cache: Cache) -> None:
    path = put(cache)
    with pytest.raises(IntegrityError, match="10 bytes and its lock says 11"):
        cache.get(SHA, 11)
    assert path.exists()


def test_temporary_names_are_not_taken_for_the_file(cache: Cache) -> None:
    path = put(cache)
    path.rename(path.with_name(".a-1.whl.tmp"))
    assert cache.get(SHA) is None


def test_one_at_a_time_holds_the_lock_of_a_digest(cache: Cache, said: list[str]) -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with cache.locked(SHA):
            order.append("second")

    with cache.locked(SHA):
        thread = threading.Thread(target=second)
        thread.start()
        entered.wait(10)
        end = time.monotonic() + 20
        while not said and time.monotonic() < end:
            time.sleep(0.001)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert said == [f"waiting for another fetch of {SHA[:12]}"]


def test_other_digests_do_not_wait(cache: Cache, said: list[str]) -> None:
    with cache.locked(SHA), cache.locked("f" * 64):
        pass
    assert said == []


def test_the_cache_stands_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "seatrial"
