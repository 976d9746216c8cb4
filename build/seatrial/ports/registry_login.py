"""Who the user is to a registry: Docker's own credential files and helpers, and the token exchange."""

from __future__ import annotations

import base64
import binascii
import json
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from seatrial.model.errors import CommandError, RegistryError
from seatrial.ports.process import run

HELPER_TIMEOUT = 30.0
"""Seconds that a credential helper may take."""

TOKEN_USER = "<token>"  # noqa: S105  # the word by which helpers mark an identity token
HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """A user name with a password, or an identity token. Never printed."""

    user: str = ""
    password: str = ""
    identity_token: str = ""

    @property
    def basic(self) -> str:
        """Return the value of a Basic Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class TransientError(Exception):
    """A failure that is worth another try.

    Args:
        reason: one line.
        wait: seconds that the other side asked for.
    """

    def __init__(self, reason: str, *, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def config_folder() -> Path:
    """Return the folder of Docker's client configuration."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def read_login(host: str, folder: Path) -> Login | None:
    """Return the login that `docker login HOST` left, or None.

    Raises:
        RegistryError: the configuration is malformed, or its credential helper fails.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RegistryError(f"{path} cannot be read", why=str(error), do=f"run: docker login {host}") from None
    if not isinstance(config, dict):
        raise RegistryError(f"{path} holds no JSON object", do=f"run: docker login {host}")
    keys = (host, f"https://{host}", f"https://{host}/v1/") + ((HUB_KEY,) if host == "docker.io" else ())
    helper = next((found for key in keys if (found := _section(config, "credHelpers").get(key))), None)
    helper = helper or config.get("credsStore")
    if helper:
        return _ask_helper(str(helper), HUB_KEY if host == "docker.io" else host)
    for key in keys:
        entry = _section(config, "auths").get(key)
        if isinstance(entry, dict) and entry:
            return _from_entry(entry, host, path)
    return None


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _from_entry(entry: dict[str, Any], host: str, path: Path) -> Login | None:
    if entry.get("identitytoken"):
        return Login(identity_token=str(entry["identitytoken"]))
    if not entry.get("auth"):
        return None
    try:
        user, colon, password = base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise RegistryError(f"the login for {host} in {path} is malformed", do=f"run: docker login {host}")
    return Login(user=user, password=password)


def _ask_helper(helper: str, server: str) -> Login | None:
    try:
        done = run([f"docker-credential-{helper}", "get"], timeout=HELPER_TIMEOUT, stdin=server.encode(), check=False)
    except CommandError as error:
        raise RegistryError(
            f"the credential helper {helper!r} does not work", why=error.what, do=f"run: docker login {server}"
        ) from None
    if done.status != 0:
        if "not found" in (done.text + done.stderr.decode(errors="replace")).lower():
            return None
        raise RegistryError(
            f"the credential helper {helper!r} failed with status {done.status}", do=f"run: docker login {server}"
        )
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        raise RegistryError(f"the credential helper {helper!r} answers nonsense", do="try: docker login") from None
    return Login(identity_token=secret) if user == TOKEN_USER else Login(user=user, password=secret)


def answer_challenge(
    client: httpx.Client, challenges: list[str], login: Login | None, *, plain_allowed: bool
) -> str | None:
    """Return the Authorization header that answers a 401, or None when none can be made.

    Args:
        challenges: the WWW-Authenticate headers.
        plain_allowed: a password may be sent over http (loopback registries only).

    Raises:
        RegistryError: the token service does not answer, or would be asked in the clear.
        TransientError: the token service answers 429 or 5xx.
        httpx.RequestError: the token service cannot be reached.
    """
    for challenge in challenges:
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and login and login.user:
            return login.basic
        if scheme.lower() == "bearer":
            fields = urllib.request.parse_keqv_list(
                [item for item in urllib.request.parse_http_list(rest) if "=" in item]
            )
            return "Bearer " + _token(client, fields, login, plain_allowed=plain_allowed)
    return None


def _token(client: httpx.Client, fields: dict[str, str], login: Login | None, *, plain_allowed: bool) -> str:
    realm = fields.get("realm", "")
    if not realm.startswith("https://") and not (plain_allowed and realm.startswith("http://")):
        raise RegistryError(
            f"the registry names a token service that cannot be trusted: {realm or 'none'}",
            why="a password would go over it in the clear",
            do="use a registry with https",
        )
    asked = {key: fields[key] for key in ("service", "scope") if fields.get(key)}
    if login and login.identity_token:
        form = {
            **asked,
            "grant_type": "refresh_token",
            "refresh_token": login.identity_token,
            "client_id": "seatrial",
        }
        answer = client.post(realm, data=form)
    else:
        headers = {"Authorization": login.basic} if login else {}
        answer = client.get(realm, params=asked, headers=headers)
    if answer.status_code == 429 or answer.status_code >= 500:
        raise TransientError(f"the token service {httpx.URL(realm).host} answered {answer.status_code}")
    if answer.status_code != 200:
        raise RegistryError(
            f"the token service {httpx.URL(realm).host} answered {answer.status_code}",
            why="the login is not accepted" if login else "there is no login for this registry",
            do="run docker login for it and try again",
        )
    try:
        data = answer.json()
        token = data.get("token") or data.get("access_token")
    except (ValueError, AttributeError):
        token = None
    if not isinstance(token, str) or not token:
        raise RegistryError(f"the token service {httpx.URL(realm).host} answered without a token")
    return token
