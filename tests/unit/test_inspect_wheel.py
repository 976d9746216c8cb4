"""Every check of a wheel: green on a good one, red for each fault that is seeded into it."""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial.model.errors import UsageError
from seatrial.model.expectation import Expectation, recorded_digest
from seatrial.model.report import Outcome, Report
from seatrial.ports.console import Console
from seatrial.stages.inspect import WHEEL_CHECKS, inspect_wheel
from tests.imagemaker import C10, PATCHED, elf_bytes
from tests.imagemaker import good_expectation as expectation_of_image
from tests.inspect_faults import KERNEL

NAME = "vllm-0.28.0+cpu.st1-cp38-abi3-manylinux_2_28_x86_64.whl"
INFO = "vllm-0.28.0+cpu.st1.dist-info"
METADATA = f"{INFO}/METADATA"
Members = dict[str, bytes]


def good_expectation(**changes: Any) -> Expectation:
    """Return what the good wheel must be; its RECORD is not the image's."""
    return expectation_of_image(**{"records": {}, **changes})


def good_members() -> Members:
    members = {
        "vllm/__init__.py": b"",
        "vllm/model.py": PATCHED,
        "vllm/_version.py": b"version = '0.28.0'\ncommit_id = 'g1892993bc'\n",
        "vllm/_C.abi3.so": elf_bytes(["libc.so.6"], wants=[C10, KERNEL]),
        "vllm/_kernels.abi3.so": elf_bytes(["libc.so.6"], brings=[KERNEL]),
        METADATA: b"Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0+cpu.st1\n"
        b"Requires-Dist: torch==2.13.0\nRequires-Dist: more; extra == 'audio'\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-abi3-manylinux_2_28_x86_64\n",
    }
    return with_record(members)


def with_record(members: Members) -> Members:
    rows = [f"{name},sha256={digest(data)},{len(data)}" for name, data in members.items() if "RECORD" not in name]
    return {**members, f"{INFO}/RECORD": "\n".join([*rows, f"{INFO}/RECORD,,", ""]).encode()}


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write(folder: Path, members: Members, name: str = NAME) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return path


def inspected(path: Path, expected: Expectation | None) -> Report:
    return inspect_wheel(path, expected, Console(out=io.StringIO(), ci=False))


def test_a_good_wheel_passes(tmp_path: Path) -> None:
    path = write(tmp_path, good_members())
    report = inspected(path, good_expectation())
    assert {case.name: case.reason for case in report.bad} == {}
    assert [case.name for case in report.cases] == [check.name for check in WHEEL_CHECKS]
    assert report.subject == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert report.subject_kind == "wheel"


def test_a_metadata_that_unpacks_to_a_mountain_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.stages.inspect.wheel_facts.LONGEST", 1 << 20)
    members = good_members()
    members[f"{INFO}/METADATA"] += b"X: " + b"a" * (1 << 20)
    reasons = {case.name: case.reason for case in inspected(write(tmp_path, with_record(members)), None).bad}
    assert f"{INFO}/METADATA is longer than 1 MiB and was not read" in reasons["wheel-archive"]
    assert "wheel-identity" in reasons


def test_without_an_expectation_the_comparison_is_not_run(tmp_path: Path) -> None:
    report = inspected(write(tmp_path, good_members()), None)
    assert [(case.name, case.outcome) for case in report.bad] == [
        ("wheel-requirements", Outcome.NOT_RUN),
        ("wheel-patched", Outcome.NOT_RUN),
    ]


def test_no_file_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no wheel"):
        inspected(tmp_path / NAME, None)


def put(name: str, data: bytes) -> Callable[[Members], Members]:
    return lambda members: with_record({**members, name: data})


def behind(name: str, data: bytes) -> Callable[[Members], Members]:
    """Change a member behind RECORD's back."""
    return lambda members: {**members, name: data}


def drop(name: str) -> Callable[[Members], Members]:
    return lambda members: {key: data for key, data in members.items() if key != name}


def record_line(old: str, new: str) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        text = members[f"{INFO}/RECORD"].decode()
        assert old in text
        return {**members, f"{INFO}/RECORD": text.replace(old, new).encode()}

    return change


def requires(line: str) -> Callable[[Members], Members]:
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0+cpu.st1\nRequires-Dist: {line}\n"
    return put(METADATA, text.encode())


NEEDS_2_28 = elf_bytes(["libc.so.6"], asks=[("libc.so.6", "GLIBC_2.28")])

FAULTS: list[tuple[str, str, Callable[[Members], Members], str]] = [
    ("wheel-archive", "'../up.py' would be written outside", put("../up.py", b""), NAME),
    ("wheel-archive", "'/abs.py' would be written outside", put("/abs.py", b""), NAME),
    ("wheel-archive", "2 dist-info folders", put("other-1.dist-info/METADATA", b""), NAME),
    ("wheel-record", "vllm/model.py differs from RECORD", behind("vllm/model.py", b"other"), NAME),
    ("wheel-record", "vllm/new.py is not in RECORD", behind("vllm/new.py", b""), NAME),
    ("wheel-record", "RECORD lists vllm/model.py, which is not in", drop("vllm/model.py"), NAME),
    ("wheel-record", "there is no RECORD", drop(f"{INFO}/RECORD"), NAME),
    ("wheel-record", "RECORD lists vllm/__init__.py twice", record_line("vllm/model.py,", "vllm/__init__.py,"), NAME),
    ("wheel-record", "has no sha256 of", record_line("vllm/model.py,sha256=", "vllm/model.py,md5="), NAME),
    ("wheel-record", "bytes, RECORD says 1", record_line(f",{len(PATCHED)}\n", ",1\n"), NAME),
    ("wheel-identity", "METADATA says vllm 0.27.0", put(f"{INFO}/METADATA", b"Name: vllm\nVersion: 0.27.0\n"), NAME),
    ("wheel-identity", "the folder vllm-0.28.0+cpu.st1.dist-info does not", dict, NAME.replace("st1", "st2")),
    ("wheel-identity", "this is vllm-cpu", dict, NAME.replace("vllm-", "vllm_cpu-")),
    ("wheel-identity", "wheel filename", dict, "vllm.whl"),
    ("wheel-tags", "WHEEL says cp38-abi3-manylinux_2_28_x86_64", dict, NAME.replace("2_28", "2_31")),
    ("wheel-tags", "Root-Is-Purelib", put(f"{INFO}/WHEEL", b"Tag: cp38-abi3-manylinux_2_28_x86_64\n"), NAME),
    ("wheel-natives", "is for AARCH64", put("vllm/_C.abi3.so", elf_bytes(machine=183)), NAME),
    ("wheel-natives", "is truncated", put("vllm/_C.abi3.so", elf_bytes()[:-9]), NAME),
    ("wheel-patched", "vllm/model.py is not the patched file", put("vllm/model.py", b"# upstream\n"), NAME),
    ("wheel-patched", "is patched in the build and missing", drop("vllm/model.py"), NAME),
    ("wheel-patched", "was removed by a fix", put("vllm/gone.py", b""), NAME),
    (
        "wheel-natives",
        "promise 2.17",
        put("vllm/_C.abi3.so", NEEDS_2_28),
        NAME.replace("manylinux_2_28", "manylinux2014"),
    ),
    ("wheel-natives", "the tags promise musl", put("vllm/_C.abi3.so", NEEDS_2_28), NAME.replace("many", "musl")),
    (
        "wheel-symbols",
        "vllm/_C.abi3.so asks for 1 functions that no member defines: rms_norm_kernel90(at::Tensor&)",
        put("vllm/_kernels.abi3.so", elf_bytes(["libc.so.6"])),
        NAME,
    ),
    (
        "wheel-accelerator",
        "says it is built for cpu, and vllm/_C.abi3.so needs libcudart.so.13: that is a build for cuda",
        put("vllm/_C.abi3.so", elf_bytes(["libcudart.so.13"])),
        NAME,
    ),
    ("wheel-accelerator", "and the platform's device is cpu", dict, NAME.replace("cpu.st1", "rocm63")),
    ("wheel-version", "_version.py says 0.27.0", put("vllm/_version.py", b"version = '0.27.0'\n"), NAME),
    ("wheel-version", "says commit gfeed", put("vllm/_version.py", b"version = '0.28.0'\ncommit_id = 'gfeed'\n"), NAME),
    ("wheel-version", "there is no vllm/_version.py", drop("vllm/_version.py"), NAME),
    ("wheel-version", "does not say a version", put("vllm/_version.py", b""), NAME),
    ("wheel-names", "tests/conftest.py would be importable as tests", put("tests/conftest.py", b""), NAME),
    ("wheel-names", "brings no module vllm", lambda m: {k: v for k, v in m.items() if "/" not in k}, NAME),
    ("wheel-requirements", "torch==2.99, and the lock has torch 2.13.0", requires("torch==2.99"), NAME),
    ("wheel-requirements", "requires absent>=1, and the lock has no absent", requires("absent>=1"), NAME),
    ("wheel-requirements", "cannot be read", requires("?!"), NAME),
]


@pytest.mark.parametrize(
    ("check", "words", "change", "name"), FAULTS, ids=[f"{row[0]}-{number}" for number, row in enumerate(FAULTS)]
)
def test_a_seeded_fault_is_red_at_its_check_and_named(
    tmp_path: Path, check: str, words: str, change: Callable[[Members], Members], name: str
) -> None:
    path = write(tmp_path, change(good_members()), name)
    case = next(case for case in inspected(path, good_expectation()).cases if case.name == check)
    assert case.outcome is Outcome.FAILED
    assert any(words.lower() in line.lower() for line in case.measured["problems"]), case.measured


def test_a_wheel_that_lacks_what_the_build_put_there_is_found(tmp_path: Path) -> None:
    text = good_members()[f"{INFO}/RECORD"].decode()
    rows = [row.split(",") for row in text.split()]
    records = {"vllm": recorded_digest((row[0], row[1].removeprefix("sha256=")) for row in rows)}
    good = inspected(write(tmp_path, good_members()), good_expectation(records=records))
    assert not good.bad
    short = with_record(drop("vllm/_kernels.abi3.so")(good_members()))
    case = inspected(write(tmp_path, short), good_expectation(records=records)).cases[-1]
    assert "RECORD lists other files or digests than the wheel of the build" in case.reason


def test_every_check_is_seen_red() -> None:
    assert {row[0] for row in FAULTS} == {check.name for check in WHEEL_CHECKS}


def test_a_newer_c_library_than_promised_is_found(tmp_path: Path) -> None:
    from pydantic_core import _pydantic_core

    data = Path(str(_pydantic_core.__file__)).read_bytes()
    old = NAME.replace("2_28", "2_5")
    members = {name: text.replace(b"2_28", b"2_5") for name, text in good_members().items()}
    path = write(tmp_path, with_record({**members, "vllm/_C.abi3.so": data}), old)
    case = next(case for case in inspected(path, good_expectation()).cases if case.name == "wheel-natives")
    assert "needs glibc 2." in case.reason
    assert "promise 2.5" in case.reason


@pytest.mark.parametrize("keep", [0, 30, 400])
def test_a_cut_file_is_damaged_and_the_rest_is_not_run(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path, good_members())
    path.write_bytes(path.read_bytes()[:keep])
    cases = {case.name: case for case in inspected(path, good_expectation()).cases}
    assert cases["wheel-archive"].outcome is Outcome.FAILED
    assert cases["wheel-record"].outcome is Outcome.NOT_RUN
    assert cases["wheel-patched"].outcome is Outcome.NOT_RUN


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path, good_members())
    data = bytearray(path.read_bytes())
    at = data.find(PATCHED)
    data[at] ^= 1
    path.write_bytes(bytes(data))
    case = inspected(path, good_expectation()).cases[0]
    assert "damaged" in case.reason
    assert "vllm/model.py" in case.reason


def test_a_name_twice_in_the_archive_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, good_members())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("vllm/model.py", b"second")
    assert "vllm/model.py is in the archive 2 times" in inspected(path, good_expectation()).cases[0].reason


def test_an_unknown_packing_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path, good_members())
    data = bytearray(path.read_bytes())
    central = data.find(b"PK\x01\x02")
    struct.pack_into("<H", data, central + 10, 99)
    path.write_bytes(bytes(data))
    assert "damaged" in inspected(path, good_expectation()).cases[0].reason
