"""The links that every configured source has for a distribution, each page read once."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import cast

import httpx2
from packaging.utils import canonicalize_name
from unearth import PackageFinder
from unearth.collector import collect_links_from_location, is_secure_origin
from unearth.fetchers import Fetcher
from unearth.link import Link

from seatrial.model.errors import FetchError
from seatrial.ports.pip_config import PipConfig
from seatrial.ports.web import Session, advice, plain


class Pages:
    """Index pages and find-links places; safe to use from several threads."""

    def __init__(self, settings: Callable[[], PipConfig], transport: httpx2.BaseTransport | None = None) -> None:
        """Take where to read the settings; they are read when first something is asked for."""
        self._settings = settings
        self._transport = transport
        self._links: dict[str, list[Link]] = {}
        self._guards: dict[str, threading.Lock] = {}
        self._guard = threading.RLock()

    @property
    def session(self) -> Session:
        """Return the HTTP session."""
        with self._guard:
            return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[Session, PackageFinder]:
        config = self._settings()
        session = Session(config, transport=self._transport)
        for note in config.notes:
            session.trouble("", note)
        for url in (*config.index_urls, *config.find_links):
            if "://" in url and not is_secure_origin(_fetcher(session), Link(url)):
                session.trouble(url, "is skipped: plain http, and its host is not in pip's trusted-host")
        finder = PackageFinder(
            _fetcher(session),
            index_urls=config.index_urls,
            find_links=config.find_links,
            ignore_compatibility=True,
        )
        return session, finder

    def links(self, distribution: str) -> list[Link]:
        """Return every link that a source has for a distribution; from find-links places, links of others too.

        Raises:
            FetchError: a source cannot be asked at all; one that merely does not answer is skipped, as pip does.
        """
        name = canonicalize_name(distribution)
        with self._guard:
            session, finder = self._opened
            guard = self._guards.setdefault(name, threading.Lock())
        with guard:
            if name not in self._links:
                found: list[Link] = []
                try:
                    for source in finder.sources:
                        expand = source["type"] != "index"
                        url = source["url"] if expand else posixpath.join(source["url"], name) + "/"
                        found += collect_links_from_location(_fetcher(session), _place(url), expand=expand)
                except (httpx2.HTTPError, ValueError, OSError) as error:
                    raise FetchError(f"{name} cannot be looked up", why=plain(error), do=advice(plain(error))) from None
                self._links[name] = found
            return self._links[name]

    def releases(self, distribution: str) -> list[tuple[str, Link]]:
        """Return the links that are files of this distribution, each with the version in its name.

        Every name is taken apart, which is slow for a distribution with thousands of files.
        """
        evaluator = self._opened[1].build_evaluator(canonicalize_name(distribution), allow_yanked=True)
        packages = (evaluator.evaluate_link(link) for link in self.links(distribution))
        return [(package.version, package.link) for package in packages if package is not None and package.version]


def _fetcher(session: Session) -> Fetcher:
    return cast(Fetcher, session)  # the library's own client does not satisfy its protocol's types


def _place(url: str) -> Link:
    return Link(url) if "://" in url else Link.from_path(Path(url).absolute())
