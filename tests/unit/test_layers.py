"""Layers of an image archive: packed in every way, with whatever later layers hide."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import zstandard

from seatrial.model.errors import EngineError
from seatrial.ports.layers import Layer, hidden_files, keep_summary, kept_summary, read_layers, summary
from tests.imagemaker import Disk, saved


def layer(*paths: str) -> bytes:
    disk = Disk()
    for path in paths:
        disk.add(path, b"data")
    return disk.tar()


def pieces(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 777] for at in range(0, len(data), 777))


def read(*layers: bytes) -> tuple[Layer, ...]:
    return read_layers(pieces(saved(layers)), lambda path, size: path.endswith(".key"))


def hidden(*layers: bytes) -> list[tuple[str, int]]:
    return sorted((one.path, one.layer) for one in hidden_files(read(*layers)))


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, zstandard.compress, lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:])],
    ids=["plain", "gzip", "zstd", "two-gzip-members"],
)
def test_a_layer_is_read_however_it_is_packed(pack: Callable[[bytes], bytes]) -> None:
    (one,) = read(pack(layer("/a/x.key", "/a/y")))
    assert one.files == {"/a/x.key": 4, "/a/y": 4}
    assert one.kept == {"/a/x.key": b"data"}


def test_layers_come_in_the_manifests_order_and_not_in_the_archives() -> None:
    data = saved([layer("/one"), layer("/two")])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        listed = json.loads(archive.extractfile("manifest.json").read())[0]["Layers"]  # type: ignore[union-attr]
        blobs = {name: archive.extractfile(name).read() for name in listed}  # type: ignore[union-attr]
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name in [*reversed(listed), "manifest.json"]:
            member = tarfile.TarInfo(name)
            body = blobs.get(name, json.dumps([{"Layers": listed}]).encode())
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    assert [list(one.files) for one in read_layers(pieces(target.getvalue()), lambda *_: False)] == [["/one"], ["/two"]]


def test_an_archive_as_buildx_writes_it_is_read_by_its_index() -> None:
    one, two = layer("/one"), layer("/two")
    manifest = {"layers": [{"digest": "sha256:b"}, {"digest": "sha256:a"}]}
    index = {"manifests": [{"digest": "sha256:inner"}]}
    members = {
        "blobs/sha256/a": two,
        "blobs/sha256/b": zstandard.compress(one),
        "blobs/sha256/inner": json.dumps({"manifests": [{"digest": "sha256:m"}]}).encode(),
        "blobs/sha256/m": json.dumps(manifest).encode(),
        "index.json": json.dumps(index).encode(),
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
    }
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, body in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    assert [list(found.files) for found in read_layers(pieces(target.getvalue()), lambda *_: False)] == [
        ["/one"],
        ["/two"],
    ]


def test_a_summary_is_the_same_after_it_was_kept(tmp_path: Path) -> None:
    digest = "sha256:" + "a" * 64
    seen = summary(read(layer("/a/x.key", "/b"), layer("/.wh.a", "/.wh.b")))
    assert [(one.path, one.data) for one in seen.hidden] == [("/a/x.key", b"data"), ("/b", None)]
    assert kept_summary(tmp_path, digest) is None
    keep_summary(seen, tmp_path, digest)
    assert kept_summary(tmp_path, digest) == seen
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_text("{}")
    assert kept_summary(tmp_path, digest) is None


def test_a_file_is_hidden_by_one_of_its_name_and_by_a_mark_for_it_or_a_folder_above() -> None:
    assert hidden(layer("/a/x"), layer("/a/x", "/b")) == [("/a/x", 1)]
    assert hidden(layer("/a/x"), layer("/a/.wh.x")) == [("/a/x", 1)]
    assert hidden(layer("/a/b/x"), layer("/.wh.a")) == [("/a/b/x", 1)]
    assert hidden(layer("/a/b/x", "/c"), layer("/a/.wh..wh..opq", "/a/new")) == [("/a/b/x", 1)]
    assert hidden(layer("/a/b/x"), layer("/a")) == [("/a/b/x", 1)]
    assert hidden(layer("/x"), layer("/.wh.x"), layer("/x")) == [("/x", 1)]


def test_what_stays_in_sight_is_not_hidden() -> None:
    assert hidden(layer("/a/x"), layer("/a/y", "/b/.wh.x")) == []
    assert hidden(layer("/.wh.x"), layer("/x")) == []
    assert hidden(layer("/ab/x"), layer("/.wh.a")) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive at all" * 100,
        saved([layer("/a")])[:2000],
        saved([gzip.compress(layer("/a"))[:-40]]),
        saved([zstandard.compress(layer("/a"))[:-20]]),
        saved([b"\x1f\x8bnothing packed"]),
    ],
    ids=["nothing", "noise", "cut", "cut-gzip", "cut-zstd", "bad-gzip"],
)
def test_an_archive_that_cannot_be_read_is_the_engines_fault(data: bytes) -> None:
    with pytest.raises(EngineError, match="layers could not be read"):
        read_layers(pieces(data), lambda *_: False)
