"""Talking HTTP to one registry: where it is, whom it trusts, who the user is, what is tried again."""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from seatrial.model.errors import RegistryError, UsageError
from seatrial.ports.registry_login import Login, TransientError, answer_challenge

SMALL = 4 << 20
"""Bytes that a manifest, a configuration or an error may have; the specification's own limit for manifests."""
TRIES = 4
"""How often one blob or one question is tried before the registry is given up."""
LONGEST_WAIT = 30.0
"""Seconds that a registry may ask for between two tries."""
TIMEOUT = httpx.Timeout(60.0, connect=15.0)
CERTS = Path("/etc/docker/certs.d")
"""Where Docker looks for the authorities of single registries; the same place serves here."""

_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """A registry's host, with its port, and a repository on it."""

    host: str
    repository: str

    def __str__(self) -> str:
        """Return the two as a user writes them."""
        return f"{self.host}/{self.repository}"

    @property
    def loopback(self) -> bool:
        """Tell whether the registry is on this machine, so that http will do."""
        name = self.host.rsplit(":", 1)[0] if not self.host.endswith("]") else self.host
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return name == "localhost"


def parse_target(text: str) -> Target:
    """Read `REGISTRY/REPO` as the user wrote it.

    Raises:
        UsageError: no registry is named, or a tag or digest is.
    """
    host, _, repository = text.partition("/")
    local = host == "localhost" or "." in host or ":" in host
    if not (local and _HOST.fullmatch(host)):
        raise UsageError(
            f"{text!r} names no registry", why="nothing is taken for granted", do="write it as HOST[:PORT]/REPOSITORY"
        )
    if ":" in repository or "@" in repository:
        raise UsageError(f"{text!r} holds a tag or a digest", why="only the gate gives names", do="leave it out")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"{text!r} is no repository", do="use lower-case words parted by '/', '-', '.' or '_'")
    return Target(host, repository)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response whose body is small and has been read."""

    status: int
    headers: httpx.Headers
    body: bytes


def _trust(host: str) -> ssl.SSLContext:
    """Return the system's trust (SSL_CERT_FILE and SSL_CERT_DIR obeyed), with Docker's per-registry authorities."""
    context = ssl.create_default_context()
    for authority in sorted((CERTS / host).glob("*.crt")):
        try:
            context.load_verify_locations(cafile=str(authority))
        except OSError as error:  # ssl.SSLError is one
            raise RegistryError(f"{authority} cannot be loaded", why=str(error), do="put a PEM file there") from None
    return context


class Door:
    """Ask one registry.

    Args:
        target: where it is; https, and http as well on loopback.
        login: what `docker login` left.
        plain: speak http, on loopback only; None: ask the registry which it speaks.
        transport: stands in for the network.
        sleep: called with the seconds between two tries.
    """

    def __init__(
        self,
        target: Target,
        login: Login | None,
        *,
        plain: bool | None,
        transport: httpx.BaseTransport | None,
        sleep: Callable[[float], None],
    ) -> None:
        self.target = target
        self._login = login
        self._sleep = sleep
        self._client = httpx.Client(
            transport=transport,
            verify=_trust(target.host),
            timeout=TIMEOUT,
            trust_env=not target.loopback,  # a proxy cannot reach this machine's loopback
            headers={"User-Agent": "seatrial"},
        )
        self._authorization: str | None = None
        host = "registry-1.docker.io" if target.host == "docker.io" else target.host
        self._root = httpx.URL(f"{'http' if self._is_plain(plain, host) else 'https'}://{host}/v2/")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def url(self, path: str) -> httpx.URL:
        """Return the address of something below the repository."""
        return self._root.join(f"{self.target.repository}/{path}")

    def _is_plain(self, plain: bool | None, host: str) -> bool:
        if plain is not None or not self.target.loopback:
            return bool(plain) and self.target.loopback
        try:
            self._client.head(f"https://{host}/v2/")
        except httpx.TransportError as error:
            return "CERTIFICATE_VERIFY_FAILED" not in str(error)
        return False

    def retry(self, what: str, action: Callable[[], T]) -> T:
        """Run an action again after a transient failure, waiting longer each time."""
        for attempt in range(1, TRIES + 1):
            try:
                return action()
            except TransientError as error:
                reason, wait = str(error), error.wait
            if attempt < TRIES:
                self._sleep(max(0.5 * 2 ** (attempt - 1), min(wait, LONGEST_WAIT)))
        raise RegistryError(
            f"the registry {self.target.host} did not {what}",
            why=f"{reason} ({TRIES} tries)",
            do="run the same again when the registry works; what it has is not sent twice",
        )

    def once(
        self,
        method: str,
        url: httpx.URL,
        *,
        good: tuple[int, ...],
        headers: Mapping[str, str] | None = None,
        content: Callable[[], bytes | Iterator[bytes]] = bytes,
    ) -> Answer:
        """Send one request, once more with a login when one is asked for, and read its small answer.

        Raises:
            TransientError: 429, 5xx or a broken connection.
            RegistryError: any other status that is not in `good`.
        """
        try:
            answer = self._send(method, url, headers or {}, content())
            if answer.status == 401:
                self._authorization = answer_challenge(
                    self._client,
                    answer.headers.get_list("www-authenticate"),
                    self._login,
                    plain_allowed=self.target.loopback,
                )
                if self._authorization is not None:
                    answer = self._send(method, url, headers or {}, content())
        except (httpx.RequestError, httpx.InvalidURL) as error:
            self._give_up_on_certificates(error)
            raise TransientError(f"{type(error).__name__}: {error}".rstrip(": ")) from None
        if answer.status in good:
            return answer
        if answer.status == 429 or answer.status >= 500:
            after = answer.headers.get("retry-after", "")
            raise TransientError(
                f"{method} {url.path} answered {answer.status}{_said(answer.body)}",
                wait=float(after) if after.isdecimal() else 0.0,
            )
        raise self._refusal(method, url, answer)

    def _send(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], content: bytes | Iterator[bytes]
    ) -> Answer:
        own = (url.scheme, url.host, url.port) == (self._root.scheme, self._root.host, self._root.port)
        merged = dict(headers)
        if own and self._authorization is not None:  # an upload may be sent elsewhere; the login may not
            merged["Authorization"] = self._authorization
        follow = method in ("GET", "HEAD")
        with self._client.stream(method, url, headers=merged, content=content, follow_redirects=follow) as response:
            body = bytearray()
            for piece in response.iter_bytes():
                body += piece
                if len(body) > SMALL:
                    raise RegistryError(f"the registry {self.target.host} sends more than {SMALL} bytes for {url.path}")
            return Answer(response.status_code, response.headers, bytes(body))

    def _give_up_on_certificates(self, error: Exception) -> None:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise RegistryError(
                f"the certificate of {self.target.host} is not trusted",
                why=str(error),
                do=f"put its authority into {CERTS / self.target.host}/ca.crt, or name it in SSL_CERT_FILE",
            ) from None

    def _refusal(self, method: str, url: httpx.URL, answer: Answer) -> RegistryError:
        words = f"{method} {url.path} answered {answer.status}{_said(answer.body)}"
        if answer.status in (401, 403):
            return RegistryError(
                f"the registry {self.target.host} does not let this user in",
                why=words,
                do=f"run: docker login {self.target.host}, with an account that may write to {self.target.repository}",
            )
        return RegistryError(f"the registry {self.target.host} refused", why=words, do="see the registry's log")


def _said(body: bytes) -> str:
    """Return the registry's own words from an error body, in front of them a colon."""
    try:
        first = json.loads(body)["errors"][0]
        return ": " + " ".join(str(first[key]) for key in ("code", "message") if first.get(key))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""
