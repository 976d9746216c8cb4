from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.model.errors import CommandError, FetchError
from seatrial.ports import pip_config, process
from seatrial.ports.pip_config import default_index, masked, parse_listing, pip_config_from, read_pip_config

LISTING = """\
:env:.find-links='/from/env'
download.timeout='7'
global.extra-index-url='\\nhttps://one.example/simple\\nhttps://two.example/simple'
global.find-links='/from/file'
global.timeout='60'
install.index-url='https://never.example/simple'
nonsense
"""


def default() -> str:
    return "https://default.example/simple/"


def test_the_environment_wins_over_the_command_over_the_files() -> None:
    assert parse_listing(LISTING) == {
        "extra-index-url": "\nhttps://one.example/simple\nhttps://two.example/simple",
        "find-links": "/from/env",
        "timeout": "7",
    }


def test_extra_indexes_alone_leave_the_default_index_in_place() -> None:
    config = pip_config_from({"extra-index-url": "https://a.example/s file:///b/s"}, default)
    assert config.index_urls == (default(), "https://a.example/s", "file:///b/s")


def test_an_index_url_replaces_the_default() -> None:
    config = pip_config_from({"index-url": "https://m.example/s", "extra-index-url": "https://a.example/s"}, default)
    assert config.index_urls == ("https://m.example/s", "https://a.example/s")


def test_the_default_comes_from_the_finder_library() -> None:
    assert default_index().startswith("https://")
    assert pip_config_from({}).index_urls == (default_index(),)


def test_no_index_leaves_find_links_only(tmp_path: Path) -> None:
    config = pip_config_from({"no-index": "true", "find-links": str(tmp_path)}, default)
    assert (config.index_urls, config.find_links) == ((), (str(tmp_path),))


def test_no_index_without_find_links_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"no-index.*find-links names .*gone, which does not exist"):
        pip_config_from({"no-index": "1", "find-links": str(tmp_path / "gone")}, default)


def test_find_links_may_be_pages_and_a_missing_folder_is_only_noted(tmp_path: Path) -> None:
    config = pip_config_from({"find-links": f"https://x.example/p.html {tmp_path} {tmp_path}/gone"}, default)
    assert config.find_links == ("https://x.example/p.html", str(tmp_path))
    assert config.notes == (f"pip's find-links names {tmp_path}/gone, which does not exist",)


def test_the_rest_is_taken_as_pip_takes_it(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.touch()
    settings = {
        "cert": str(pem),
        "client-cert": str(pem),
        "proxy": "http://u:p@proxy.example:8080",
        "trusted-host": "a.example b.example:8443",
        "default-timeout": "180",
        "retries": "2",
    }
    config = pip_config_from(settings, default)
    assert (config.cert, config.client_cert, config.proxy) == (pem, pem, "http://u:p@proxy.example:8080")
    assert (config.trusted_hosts, config.timeout, config.retries) == (("a.example", "b.example:8443"), 180.0, 2)
    assert (pip_config_from({}, default).timeout, pip_config_from({}, default).retries) == (15.0, 5)


@pytest.mark.parametrize("name", ["cert", "client-cert"])
def test_a_missing_certificate_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=rf"pip's {name} names .*gone.pem, which does not exist"):
        pip_config_from({name: str(tmp_path / "gone.pem")}, default)


@pytest.mark.parametrize("value", ["soon", "-1"])
def test_a_timeout_that_is_no_number_is_said(value: str) -> None:
    with pytest.raises(FetchError, match=rf"pip's timeout is '{value}'"):
        pip_config_from({"timeout": value}, default)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@h.example/simple/x/", "https://****@h.example/simple/x/"),
        ("https://token@h.example:8443/a", "https://****@h.example:8443/a"),
        ("https://h.example/a.whl?sig=secret#sha256=1", "https://h.example/a.whl"),
        ("file:///a/b", "file:///a/b"),
    ],
)
def test_credentials_are_masked(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_pip_is_asked_and_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def none(argv: list[str], *, timeout: float) -> process.Completed:
        asked.append(argv)
        raise CommandError("python3 ended with status 1", output="No module named pip")

    monkeypatch.setattr(pip_config.process, "run", none)
    with pytest.raises(FetchError, match=r"No module named pip"):
        read_pip_config()
    assert all(argv[-2:] == ["config", "list"] for argv in asked)

    def some(argv: list[str], *, timeout: float) -> process.Completed:
        return process.Completed(tuple(argv), 0, b"global.index-url='https://m.example/s'\n", b"")

    monkeypatch.setattr(pip_config.process, "run", some)
    assert read_pip_config().index_urls == ("https://m.example/s",)
