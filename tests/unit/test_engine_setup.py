from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.model.errors import DiskError, EngineError
from seatrial.ports import engine, engine_setup
from seatrial.ports.console import Console
from seatrial.ports.engine_setup import Machine, borrowed_suite, parse_targets, pin_text, require_setup, source_text

DEBIAN = Machine(uid=0, os_id="debian", codename="bookworm", pretty="Debian 12", has_apt=True)


@pytest.mark.parametrize(
    ("machine", "allowed", "words"),
    [
        (DEBIAN, False, ("--no-setup", "apt-get install --no-install-recommends docker.io")),
        (Machine(1000, "debian", "bookworm", "Debian 12", True), True, ("only root", "sudo sh -c 'apt-get update")),
        (Machine(0, "fedora", "", "Fedora 43", False), True, ("Fedora 43 is neither", "install Docker Engine 26")),
        (Machine(0, "fedora", "", "Fedora 43", False), False, ("neither Debian nor Ubuntu",)),
        (Machine(0, "", "", "this system", True), True, ("neither Debian nor Ubuntu",)),
    ],
)
def test_where_nothing_may_be_installed_the_error_says_what_to_type(
    machine: Machine, allowed: bool, words: tuple[str, ...]
) -> None:
    with pytest.raises(EngineError) as caught:
        require_setup(machine, ("docker.io", "docker-buildx"), "no engine", allowed=allowed)
    for word in words:
        assert word in str(caught.value)


def test_root_on_debian_may_install() -> None:
    require_setup(DEBIAN, ("docker.io",), "no engine", allowed=True)


def test_the_machine_is_read_from_its_release_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=ubuntu\nVERSION_CODENAME=noble\nPRETTY_NAME="Ubuntu 24.04"\n')
    machine = engine_setup.read_machine(tmp_path)
    assert (machine.os_id, machine.codename, machine.pretty) == ("ubuntu", "noble", "Ubuntu 24.04")
    assert engine_setup.read_machine(tmp_path / "none").os_id == ""


def test_a_newer_suite_is_borrowed_from_the_archive_that_the_machine_uses() -> None:
    targets = parse_targets("http://a.invalid/debian/|bookworm-updates\nhttp://b.invalid/debian/|bookworm\n\nbroken\n")
    assert targets == [("http://a.invalid/debian/", "bookworm-updates"), ("http://b.invalid/debian/", "bookworm")]
    assert borrowed_suite(targets, "bookworm") == ("http://b.invalid/debian/", "trixie")
    assert borrowed_suite(targets, "trixie") is None
    assert borrowed_suite([], "bookworm") is None


def test_nothing_but_the_engine_comes_from_the_borrowed_suite() -> None:
    stanzas = pin_text("trixie").strip().split("\n\n")
    assert stanzas[0] == "Package: *\nPin: release n=trixie\nPin-Priority: 1"
    assert stanzas[1].startswith("Package: docker.io docker-cli docker-buildx containerd\n")
    assert "Suites: trixie\n" in source_text("http://b.invalid/debian/", "trixie")


def test_an_engine_s_settings_are_never_overwritten(tmp_path: Path) -> None:
    engine_setup.write_daemon_config(Console(), tmp_path)
    path = tmp_path / engine_setup.DAEMON_FILE
    assert "containerd-snapshotter" in path.read_text()
    path.write_text("{}")
    engine_setup.write_daemon_config(Console(), tmp_path)
    assert path.read_text() == "{}"


def test_a_daemon_that_runs_and_does_not_answer_is_not_joined_by_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_setup, "running_daemon", lambda: 4711)
    monkeypatch.setattr(engine_setup, "wait_for", lambda *_: False)
    with pytest.raises(EngineError, match="process 4711"):
        engine_setup.start_engine(Console(), lambda: False, allowed=True)


def test_no_setup_starts_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_setup, "running_daemon", lambda: None)
    with pytest.raises(EngineError, match="--no-setup"):
        engine_setup.start_engine(Console(), lambda: False, allowed=False)


def test_what_an_engine_lacks_is_named() -> None:
    good = {"ServerVersion": "26.1.5+dfsg1", "DriverStatus": [["driver-type", engine.STORE]]}
    assert engine.lacks(good) == []
    assert "version 20.10.24" in engine.lacks({**good, "ServerVersion": "20.10.24"})[0]
    assert "containerd-snapshotter" in engine.lacks({**good, "DriverStatus": [["Backing Filesystem", "extfs"]]})[0]
    assert len(engine.lacks({})) == 2


def test_the_engine_s_words_for_a_full_disk_become_that_error() -> None:
    full = engine.as_error("load the image", "write /var/lib/x: no space left on device")
    assert isinstance(full, DiskError)
    assert isinstance(engine.as_error("load the image", "EOF"), EngineError)


def test_a_context_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    assert engine.endpoint() == (None, None, "")
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere")
    with pytest.raises(EngineError, match="nowhere"):
        engine.endpoint()
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert engine.chosen_by_user() == "DOCKER_HOST"
