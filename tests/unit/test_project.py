"""The checkout and its typed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.flow.project import Project, choose_base, find_project
from seatrial.model.errors import LockError, UsageError
from seatrial.model.platforms import Platform

HERE = Path(__file__).resolve().parents[2]


def row(**more: object) -> Platform:
    return Platform(name="cpu", family="cpu", device="cpu", machine="x86_64", **more)  # type: ignore[arg-type]


def test_the_checkout_is_found_from_any_folder_inside_it() -> None:
    assert find_project(HERE / "tests" / "unit").root == HERE


def test_outside_a_checkout_the_one_that_was_installed_is_used(tmp_path: Path) -> None:
    assert find_project(tmp_path).root == HERE


def test_the_committed_tables_and_locks_are_valid() -> None:
    project = Project(HERE)
    versions = project.base_versions()
    assert versions == tuple(sorted(versions, key=lambda version: tuple(map(int, version.split(".")))))
    for version in versions:
        assert project.base_lock(version).version == version
    for platform in project.platform_table().platforms:
        assert platform.missing or platform.default_base in platform.bases
        assert set(platform.bases) <= set(versions)


@pytest.mark.parametrize("data", [None, b"\xff\xfe", b"[["])
def test_a_platform_table_that_cannot_be_read_is_one_line(data: bytes | None, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "images").mkdir()
        (tmp_path / "images/platforms.toml").write_bytes(data)
    with pytest.raises(LockError, match=r"^images/platforms\.toml"):
        Project(tmp_path).platform_table()


def test_a_platform_that_stands_twice_is_refused(tmp_path: Path) -> None:
    rows = "".join(
        f'[[platforms]]\nname = "{name}"\nfamily = "cpu"\ndevice = "cpu"\nmachine = "x86_64"\n'
        for name in ("cpu", "xpu", "cpu")
    )
    (tmp_path / "images").mkdir()
    (tmp_path / "images/platforms.toml").write_text(rows)
    with pytest.raises(LockError, match=r"^images/platforms\.toml: platforms: .*cpu stands twice, as rows 1 and 3"):
        Project(tmp_path).platform_table()


def test_every_session_of_a_platform_is_on_the_menu() -> None:
    menu = (HERE / "noxfile.py").read_text(encoding="utf-8")
    for platform in Project(HERE).platform_table().platforms:
        assert f'name="build-{platform.name}"' in menu


def test_the_default_base_is_taken_and_an_unknown_one_is_answered_with_the_known_ones() -> None:
    assert choose_base(row(bases=("1.0.0",), default_base="1.0.0"), None) == "1.0.0"
    assert choose_base(row(bases=("1.0.0", "2.0.0"), default_base="1.0.0"), "2.0.0") == "2.0.0"
    with pytest.raises(UsageError) as caught:
        choose_base(row(bases=("1.0.0",), default_base="1.0.0"), "9.9.9")
    assert "1.0.0" in caught.value.why
    with pytest.raises(LockError):
        choose_base(row(), None)


def test_a_code_digest_sees_bytes_and_passes_caches_over(tmp_path: Path) -> None:
    project = Project(tmp_path)
    folder = tmp_path / "code"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "a.py").write_text("1")
    before = project.code_digest(folder)
    (folder / "__pycache__" / "a.pyc").write_text("cache")
    assert project.code_digest(folder) == before
    (folder / "a.py").write_text("2")
    assert project.code_digest(folder) != before
