"""The HTTP session that indexes are asked with: pip's certificates, proxy, trust, credentials and retries."""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
from unearth.auth import MultiDomainBasicAuth
from unearth.collector import LinkCollectError
from unearth.fetchers.sync import PyPIClient

from seatrial.model.errors import FetchError
from seatrial.ports.pip_config import PipConfig, masked

BACKOFF = 0.25
"""Seconds before the first retry, doubled each time; pip's own value."""
TRANSIENT = frozenset({429, 500, 502, 503, 504, 520, 527})
"""Statuses that are worth another try."""
CONNECTIONS = 16

logging.getLogger("unearth").addHandler(logging.NullHandler())  # its warnings are reported with the error they explain


class Session(PyPIClient):
    """Ask pages and files; keeps what went wrong, because the finder skips a source that does not answer."""

    def __init__(self, config: PipConfig, *, transport: httpx2.BaseTransport | None = None) -> None:
        verify = _tls_context(config.cert, config.client_cert)
        limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        options: dict[str, Any] = {"mounts": _trusted_mounts(config, limits)}
        if transport is not None:
            options = {"transport": transport, "mounts": {f"all://{host}": transport for host in config.trusted_hosts}}
        elif config.proxy:
            options["proxy"] = config.proxy
        super().__init__(
            trusted_hosts=config.trusted_hosts,
            verify=verify,
            limits=limits,
            timeout=httpx2.Timeout(config.timeout),
            follow_redirects=True,
            auth=MultiDomainBasicAuth(prompting=False, index_urls=(*config.index_urls, *config.find_links)),
            headers={"User-Agent": "seatrial"},
            **options,
        )
        self.retries = config.retries
        self.sleep: Callable[[float], None] = time.sleep
        self.sizes: dict[str, int] = {}
        """Bytes of a file by its SHA-256, as far as index pages state them."""
        self._troubles: dict[str, str] = {}
        self._guard = threading.Lock()

    def get(  # type: ignore[override]  # the finder's protocol is narrower than httpx2's
        self, url: str, *, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """Return a page; tries again after a transient failure.

        Raises:
            LinkCollectError: no answer, which makes the finder go on with the next source, as pip does.
        """
        for attempt in range(self.retries + 1):
            trouble = ""
            try:
                answer = super().get(url, headers=headers)
            except httpx2.HTTPError as error:
                trouble = plain(error)
                if "CERTIFICATE" in trouble:
                    break
            else:
                if answer.status_code not in TRANSIENT:
                    if answer.status_code >= 400 and answer.status_code != 404:
                        self.trouble(url, f"answered {answer.status_code} {answer.reason_phrase}")
                    self._note_sizes(answer)
                    return answer
                trouble = f"answered {answer.status_code} {answer.reason_phrase}"
            if attempt < self.retries:
                self.sleep(BACKOFF * 2**attempt)
        self.trouble(url, trouble)
        raise LinkCollectError(trouble)

    def _note_sizes(self, answer: httpx2.Response) -> None:
        """Keep the sizes that a JSON index page states; the finder library drops them."""
        if "simple.v1+json" not in answer.headers.get("Content-Type", ""):
            return
        with contextlib.suppress(ValueError):
            files = answer.json().get("files", ())
            self.sizes.update(
                (entry["hashes"]["sha256"], entry["size"])
                for entry in files
                if isinstance(entry.get("size"), int) and "sha256" in entry.get("hashes", {})
            )

    def trouble(self, url: str, what: str) -> None:
        """Keep one sentence about a place that did not do its part."""
        with self._guard:
            self._troubles[masked(url)] = what

    def troubles(self) -> str:
        """Return what went wrong so far, in one line; pages that are simply not there (404) are no trouble."""
        with self._guard:
            return "; ".join(f"{url} {what}".strip() for url, what in self._troubles.items())


def _tls_context(cert: Path | None, client_cert: Path | None) -> ssl.SSLContext:
    """Return pip's trust: the configured bundle alone, or else the default one."""
    try:
        if cert is None:
            context = httpx2.create_ssl_context()
        elif cert.is_dir():
            context = ssl.create_default_context(capath=str(cert))
        else:
            context = ssl.create_default_context(cafile=str(cert))
        if client_cert is not None:
            context.load_cert_chain(str(client_cert))
    except (OSError, ssl.SSLError) as error:
        raise FetchError(
            "pip's cert or client-cert cannot be loaded",
            why=f"{cert or ''} {client_cert or ''}: {error}".strip(),
            do="python -m pip config list shows them; both have to be PEM files",
        ) from None
    return context


def _trusted_mounts(config: PipConfig, limits: httpx2.Limits) -> dict[str, httpx2.BaseTransport]:
    """Return transports that do not check certificates, for trusted hosts, behind the proxy where there is one."""
    if not config.trusted_hosts:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if config.client_cert is not None:
        context.load_cert_chain(str(config.client_cert))
    from_environment = urllib.request.getproxies_environment()
    mounts: dict[str, httpx2.BaseTransport] = {}
    for host in config.trusted_hosts:
        for scheme in ("http", "https"):
            proxy = config.proxy
            if proxy is None and not urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
                proxy = from_environment.get(scheme)
            mounts[f"{scheme}://{host}"] = httpx2.HTTPTransport(verify=context, limits=limits, proxy=proxy)
    return mounts


def plain(error: Exception) -> str:
    """Return why a request failed as one line without a URL."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, httpx2.ProxyError):
        return f"the proxy refused: {text}"
    if isinstance(error, httpx2.TimeoutException):
        return f"no answer in time ({type(error).__name__})"
    return text.splitlines()[0]


def advice(reason: str) -> str:
    """Return what to do about a reason for not getting something."""
    if "CERTIFICATE" in reason:
        return "trust the authority that signed it: python -m pip config set global.cert FILE"
    if "proxy" in reason.lower():
        return "check pip's proxy setting: python -m pip config list"
    if " 401" in reason or " 403" in reason:
        return "check the credentials in pip's index URL or in .netrc"
    return "check the network and pip's configuration (python -m pip config list), then run the same again"
