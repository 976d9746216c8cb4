"""An OCI archive gives only blobs that are what their digest says."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.model.errors import IntegrityError
from seatrial.ports.oci_archive import SMALL, OciArchive
from tests.nameslab import SmallImage, make_image


@pytest.fixture
def image(tmp_path: Path) -> SmallImage:
    return make_image(tmp_path / "image.tar", 1, [b"one", b"two"])


def test_every_blob_comes_back(image: SmallImage) -> None:
    archive = OciArchive(image.archive)
    assert archive.small(image.digest) == image.manifest
    for digest, data in image.blobs.items():
        assert archive.size(digest) == len(data)
        assert b"".join(archive.chunks(digest)) == data


def test_a_flipped_byte_is_seen_in_every_blob(image: SmallImage) -> None:
    whole = image.archive.read_bytes()
    for digest, data in {**image.blobs, image.digest: image.manifest}.items():
        at = whole.index(data)
        image.archive.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(IntegrityError, match="is damaged"):
            OciArchive(image.archive).small(digest)


def test_an_archive_cut_after_it_was_opened_is_seen(image: SmallImage) -> None:
    archive = OciArchive(image.archive)
    at = image.archive.read_bytes().index(image.manifest)
    image.archive.write_bytes(image.archive.read_bytes()[: at + 10])
    with pytest.raises(IntegrityError, match="is damaged"):
        archive.small(image.digest)


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, "index.json", "oci-layout", "", "sha256:"])
def test_what_is_no_blob_is_lacking(image: SmallImage, digest: str) -> None:
    with pytest.raises(IntegrityError, match="lacks"):
        OciArchive(image.archive).size(digest)


def test_a_large_blob_is_no_manifest(tmp_path: Path) -> None:
    image = make_image(tmp_path / "image.tar", 1, [b"one"], labels={"x": "y" * (SMALL + 1)})
    config = max(image.blobs, key=lambda digest: len(image.blobs[digest]))
    with pytest.raises(IntegrityError, match="too large"):
        OciArchive(image.archive).small(config)


@pytest.mark.parametrize("data", [b"", b"nonsense" * 1000, b"\x1f\x8b" + b"x" * 600])
def test_what_is_no_archive_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "image.tar").write_bytes(data)
    with pytest.raises(IntegrityError, match=r"image\.tar cannot be read"):
        OciArchive(tmp_path / "image.tar")


def test_an_archive_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"image\.tar cannot be read"):
        OciArchive(tmp_path / "image.tar")
