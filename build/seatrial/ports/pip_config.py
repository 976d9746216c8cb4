"""The user's pip configuration: where packages come from, and how those places are reached."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from unearth import PackageFinder

from seatrial.model.errors import CommandError, FetchError
from seatrial.ports import process

SECTIONS = ("global", "download", ":env:")
"""Sections that count, later over earlier; `download` is the pip command whose work this is."""


@dataclass(frozen=True, slots=True)
class PipConfig:
    """What pip would use. URLs may hold credentials: print them through :func:`masked`."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: Path | None = None
    client_cert: Path | None = None
    proxy: str | None = None
    timeout: float = 15.0
    """Seconds without an answer, pip's default."""
    retries: int = 5
    """Further tries after a failed one, pip's default."""
    notes: tuple[str, ...] = ()
    """Settings that point at nothing, one sentence each."""


def masked(url: str) -> str:
    """Return a URL with its credentials, query and fragment hidden."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"****@{host}" if at and user else host
    return urlunsplit((parts.scheme, netloc, parts.path, "", ""))


def default_index() -> str:
    """Return the index that is asked when none is configured, as the finder library knows it."""
    return str(PackageFinder().sources[0]["url"])


def read_pip_config() -> PipConfig:
    """Ask pip for its settings (files, PIP_* variables, virtual environment) and return those that fetching obeys.

    Raises:
        FetchError: there is no pip to ask, or a setting makes no sense.
    """
    tail = ["--disable-pip-version-check", "--no-input", "config", "list"]
    for head in ([sys.executable, "-m", "pip"], ["python3", "-m", "pip"]):
        try:
            listing = process.run([*head, *tail], timeout=60).text
        except CommandError as error:
            reason = (error.output.splitlines() or [error.what])[-1]
            continue
        return pip_config_from(parse_listing(listing))
    raise FetchError(
        "pip's configuration cannot be read", why=reason, do="install pip for this Python: python3 -m ensurepip"
    )


def parse_listing(text: str) -> dict[str, str]:
    """Return the settings that `pip config list` prints, by bare name, later sections over earlier ones."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        section, dot, name = key.rpartition(".")
        if equals and dot and section in by_section:
            by_section[section][name.replace("_", "-")] = str(ast.literal_eval(value))
    merged: dict[str, str] = {}
    for section in SECTIONS:
        merged.update(by_section[section])
    return merged


def pip_config_from(settings: Mapping[str, str], default: Callable[[], str] = default_index) -> PipConfig:
    """Turn settings by name into a configuration; the default index stays unless `index-url` or `no-index` says else.

    Raises:
        FetchError: no source is left, a number is not one, or a certificate file is missing.
    """
    notes: list[str] = []
    find_links = []
    for entry in settings.get("find-links", "").split():
        place = str(Path(entry).expanduser()) if entry.startswith("~") else entry
        if "://" not in place and not Path(place).exists():
            notes.append(f"pip's find-links names {entry}, which does not exist")
            continue
        find_links.append(place)
    if settings.get("no-index", "").strip().lower() in ("1", "true", "yes", "on", "y", "t"):
        index_urls: tuple[str, ...] = ()
        if not find_links:
            raise FetchError(
                "pip is configured with no-index and without a find-links that exists",
                why="; ".join(notes) or "there is no place left to fetch from",
                do="unset no-index or set find-links: python -m pip config list shows both",
            )
    else:
        first = settings.get("index-url", "").strip() or default()
        index_urls = (first, *settings.get("extra-index-url", "").split())
    timeout = settings.get("timeout") or settings.get("default-timeout") or "15"
    return PipConfig(
        index_urls=index_urls,
        find_links=tuple(find_links),
        trusted_hosts=tuple(settings.get("trusted-host", "").split()),
        cert=_existing(settings, "cert"),
        client_cert=_existing(settings, "client-cert"),
        proxy=settings.get("proxy") or None,
        timeout=_number("timeout", timeout),
        retries=int(_number("retries", settings.get("retries") or "5")),
        notes=tuple(notes),
    )


def _existing(settings: Mapping[str, str], name: str) -> Path | None:
    value = settings.get(name)
    if not value:
        return None
    path = Path(value).expanduser()
    if not path.exists():
        raise FetchError(
            f"pip's {name} names {value}, which does not exist",
            do=f"correct it: python -m pip config set global.{name}",
        )
    return path


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if number < 0:
        raise FetchError(f"pip's {name} is {value!r}, which is no number", do="python -m pip config list shows it")
    return number
