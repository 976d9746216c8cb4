"""Versions, tags and text files of a patched wheel."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from seatrial.model.errors import BuildError
from seatrial.model.wheel import (
    escaped,
    field,
    is_native,
    merge_metadata,
    sort_paths,
    split_headers,
    stamp_version,
    true_tag,
    wheel_text,
    wheel_version,
)
from tests.wheelmaker import METADATA, OFFICIAL_METADATA, VERSION_PY

OLD_VERSION_PY = VERSION_PY.replace(b"tuple[int | str, ...]", b"VERSION_TUPLE").replace(
    b"__version__: str", b"VERSION_TUPLE = object\n__version__: str"
)


@pytest.mark.parametrize(
    ("platform", "revision", "wanted"),
    [
        ("cpu", 1, "0.15.1+cpu.st1"),
        ("cuda-sm80", 12, "0.15.1+cuda.sm80.st12"),
        ("rocm-gfx942", 3, "0.15.1+rocm.gfx942.st3"),
    ],
)
def test_versions_are_normal_already(platform: str, revision: int, wanted: str) -> None:
    version = wheel_version("0.15.1", platform, revision)
    assert version == wanted == str(Version(version))
    assert Version(version).public == "0.15.1"


def test_a_version_stands_in_a_file_name() -> None:
    name, version, _, _ = parse_wheel_filename(f"vllm-{wheel_version('0.15.1', 'cpu', 2)}-cp38-abi3-linux_x86_64.whl")
    assert (name, version.local) == ("vllm", "cpu.st2")


@pytest.mark.parametrize(("name", "wanted"), [("vllm", "vllm"), ("vLLM-cpu", "vllm_cpu"), ("a.-b", "a_b")])
def test_names_are_escaped(name: str, wanted: str) -> None:
    assert escaped(name) == wanted


@pytest.mark.parametrize("generated", [VERSION_PY, OLD_VERSION_PY, VERSION_PY.replace(b"'1.2.3'", b"'9'")])
def test_the_version_file_says_the_wheels_version(tmp_path: Path, generated: bytes) -> None:
    path = tmp_path / "_version.py"
    path.write_bytes(b"from __future__ import annotations\n" + stamp_version(generated, "1.2.3+cuda.sm80.st4"))
    names = runpy.run_path(str(path))
    assert names["__version__"] == names["version"] == "1.2.3+cuda.sm80.st4"
    assert names["__version_tuple__"] == names["version_tuple"] == (1, 2, 3, "cuda.sm80.st4")
    assert names["commit_id"] is None
    assert stamp_version(stamp_version(generated, "1.2.3+a.st1"), "1.2.3+a.st1") == stamp_version(
        generated, "1.2.3+a.st1"
    )


@pytest.mark.parametrize("generated", [b"", b"__version__ = '1'\n", VERSION_PY * 2])
def test_an_unknown_version_file_is_refused(generated: bytes) -> None:
    with pytest.raises(BuildError, match="not one"):
        stamp_version(generated, "1.2.3+cpu.st1")


FILE = ("cp38", "abi3", "manylinux_2_28_x86_64")


@pytest.mark.parametrize(
    ("members", "file_tag", "wanted"),
    [
        (["vllm/_C.abi3.so", "vllm/x.py"], FILE, FILE),
        (["vllm/_C.abi3.so", "vllm/r.cpython-312-x86_64-linux-gnu.so"], FILE, ("cp312", "cp312", FILE[2])),
        (["vllm/r.cpython-314t-x86_64-linux-gnu.so"], FILE, ("cp314", "cp314", FILE[2])),
        (["vllm/x.py", "vllm.libs/libgomp.so.1"], FILE, FILE),
        (["vllm/_C.abi3.so"], ("cp311", "cp311", "linux_x86_64"), ("cp311", "cp311", "linux_x86_64")),
    ],
)
def test_the_tag_is_what_the_natives_prove(
    members: list[str], file_tag: tuple[str, str, str], wanted: tuple[str, str, str]
) -> None:
    assert true_tag(file_tag, members, "x.whl") == wanted


def test_natives_for_two_pythons_are_refused() -> None:
    with pytest.raises(BuildError, match="several Pythons: 311, 312"):
        true_tag(FILE, ["a.cpython-311-x.so", "b.cpython-312-x.so"], "x.whl")


@pytest.mark.parametrize(
    ("name", "wanted"), [("a.so", 1), ("a.abi3.so", 1), ("liba.so.1.2", 1), ("a.so.py", 0), ("so", 0)]
)
def test_natives_are_known_by_name(name: str, wanted: int) -> None:
    assert is_native(name) == bool(wanted)


def test_paths_are_sorted_by_whether_a_wheel_holds_them() -> None:
    inside, beside = sort_paths(["vllm/b.py", "tests/t.py", "vllm/a.json", "docs/x.md", "vllm/b.py"])
    assert (inside, beside) == (("vllm/a.json", "vllm/b.py"), ("docs/x.md", "tests/t.py"))


@pytest.mark.parametrize(
    "path",
    [
        "csrc/ops.h",
        "CMakeLists.txt",
        "setup.py",
        "requirements/cpu.txt",
        "vllm/_C.abi3.so",
        "vllm/k.cu",
        "x",
        "../vllm/a.py",
    ],
)
def test_paths_that_need_a_compiler_are_refused(path: str) -> None:
    with pytest.raises(BuildError, match="overlay mode cannot take that in"):
        sort_paths(["vllm/a.py", path])


def test_metadata_describes_upstream_and_needs_what_the_binaries_need() -> None:
    binaries = METADATA.format(name="vllm-cpu", version="1.2.3").encode()
    merged, loosened = merge_metadata(OFFICIAL_METADATA, binaries, name="vllm", version="1.2.3+cpu.st1")
    parsed = Metadata.from_email(merged)
    assert (parsed.name, str(parsed.version), parsed.author) == ("vllm", "1.2.3+cpu.st1", "vLLM Team")
    assert (parsed.license_expression, parsed.license, parsed.license_files) == ("Apache-2.0", None, ["LICENSE"])
    assert str(parsed.requires_python) == ">=3.10"
    assert [str(each) for each in parsed.requires_dist or ()] == [
        'torch==2.0.0; platform_machine == "x86_64"',
        "numpy",
        'scipy; extra == "audio"',
    ]
    assert parsed.provides_extra == ["audio"]
    assert parsed.description == "# vLLM, the real thing: ⚓\n"
    assert loosened == ('torch==2.0.0+cpu; platform_machine == "x86_64"',)
    assert b"third party" not in merged


@pytest.mark.parametrize("text", [b"\xff: x\n\n", b"no header\n\n", b"Na me: x\n\n"])
def test_metadata_that_is_none(text: bytes) -> None:
    with pytest.raises(BuildError, match="METADATA"):
        split_headers(text, "METADATA")


words_alphabet = st.characters(codec="utf-8", exclude_categories=("C", "Z"))
words = st.text(words_alphabet, min_size=1)


@given(
    st.lists(st.tuples(st.sampled_from(("Name", "Classifier", "X-y")), words)), st.text(words_alphabet | st.just("\n"))
)
def test_headers_come_back_as_they_were(headers: list[tuple[str, str]], body: str) -> None:
    text = "".join(f"{name}: {value}\n" for name, value in [("First", "1"), *headers]) + "\n" + body
    assert split_headers(text.encode(), "x") == ([("First", "1"), *headers], body)


def test_folded_headers_stay_folded() -> None:
    headers, body = split_headers(b"License: a\n        b\n\tc\r\nName: x\n\nbody\n\nmore\n", "x")
    assert headers == [("License", "a\n        b\n\tc"), ("Name", "x")]
    assert body == "body\n\nmore\n"
    assert field(b"A: 1\nB: 2\nA: 3\n\n", "A", "x") == ["1", "3"]


def test_the_wheel_file_lists_every_tag() -> None:
    assert wheel_text("seatrial 1", False, ["cp38-abi3-b", "cp38-abi3-a"]).decode().splitlines() == [
        "Wheel-Version: 1.0",
        "Generator: seatrial 1",
        "Root-Is-Purelib: false",
        "Tag: cp38-abi3-a",
        "Tag: cp38-abi3-b",
        "",
    ]
