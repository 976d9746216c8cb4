"""The stored lists of operators, and the layouts that are lent to the engine."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from seatrial.flow.project import Project
from seatrial.model.errors import UsageError
from seatrial.model.expectation import recorded_digest
from seatrial.model.operators import Absent, OperatorList, operators_text
from seatrial.model.values import parse_toml
from seatrial.ports.engine_layout import layout_stream
from tests.imagemaker import saved

ROOT = Path(__file__).parents[2]


def test_a_list_is_the_same_after_writing_and_reading() -> None:
    made = OperatorList(
        base="0.28.0",
        platform="cpu",
        natives={"vllm._C": "a" * 64},
        operators={"vllm._C": ("_C::a", "_C::b.out")},
        absent=(Absent(operator="_C::c", why='Built without "x".'),),
    )
    text = operators_text(made)
    assert parse_toml(OperatorList, text, "x") == made
    assert operators_text(parse_toml(OperatorList, text, "x")) == text


@pytest.mark.parametrize("base", ["0.15.1", "0.28.0"])
def test_the_kept_lists_are_as_the_command_writes_them(base: str) -> None:
    path = ROOT / "images" / "operators" / f"{base}-cpu.toml"
    made = Project(ROOT).operator_list(base, "cpu")
    assert made is not None
    assert operators_text(made) == path.read_text()
    registered = {name for names in made.operators.values() for name in names}
    assert registered
    assert not registered & {one.operator for one in made.absent}, "an operator that is there needs no excuse"


def test_a_base_without_a_list_has_none() -> None:
    assert Project(ROOT).operator_list("0.0.1", "cpu") is None


def test_a_record_counts_the_same_in_a_wheel_and_installed() -> None:
    wheel = [("a/x.py", "1"), ("a-1.data/purelib/y.py", "2"), ("a-1.data/scripts/z", "3"), ("a-1.dist-info/RECORD", "")]
    there = [
        ("y.py", "2"),
        ("a/x.py", "1"),
        ("../../../bin/z", "9"),
        ("a-1.dist-info/INSTALLER", "4"),
        ("a/x.pyc", "5"),
    ]
    assert recorded_digest(wheel) == recorded_digest(there)
    assert recorded_digest(wheel) != recorded_digest([*wheel, ("a/new.py", "6")])
    assert recorded_digest(wheel) != recorded_digest([("a/x.py", "7"), *wheel[1:]])


def lay(folder: Path) -> Path:
    (folder / "blobs").mkdir()
    (folder / "blobs" / "one").write_bytes(b"x" * 700)
    named = {"org.opencontainers.image.ref.name": "latest"}
    (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": "d", "annotations": named}]}))
    return folder


def test_a_layout_folder_is_given_as_a_tar_without_its_names(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(b"".join(layout_stream(lay(tmp_path))))) as archive:
        assert archive.getnames() == ["blobs/one", "index.json"]
        assert json.loads(archive.extractfile("index.json").read()) == {"manifests": [{"digest": "d"}]}  # type: ignore[union-attr]
        assert archive.extractfile("blobs/one").read() == b"x" * 700  # type: ignore[union-attr]


def test_an_archive_loses_its_names_too(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(saved([b"layer"]))
    with tarfile.open(fileobj=io.BytesIO(b"".join(layout_stream(path)))) as archive:
        assert json.loads(archive.extractfile("manifest.json").read())[0]["RepoTags"] is None  # type: ignore[union-attr]


def test_what_is_no_layout_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no OCI layout"):
        list(layout_stream(tmp_path))
    (tmp_path / "x.tar").write_bytes(b"noise")
    with pytest.raises(UsageError, match="no OCI layout"):
        list(layout_stream(tmp_path / "x.tar"))
