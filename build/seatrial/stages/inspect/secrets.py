"""Secrets, proxies and private addresses of the build that have no place in an image.

A problem names where the value stands and never the value.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from seatrial.stages.inspect.subject import Found, Image

PROXY = re.compile(r"(?i)\b(?:https?|ftp|all|no)_proxy\b")
SECRET_NAME = re.compile(
    r"(?i)(?:^|[_.-])(?:token|secret|password|passwd|passphrase|api_?key|private_?key|access_?key|credentials?)(?:[_.-]|$)"
)
PACKAGE_INDEX = re.compile(r"(?i)^(?:pip|uv)_(?:.*_)?(?:index|index_url|extra_index_url|find_links|trusted_host)$")
SECRET_VALUES = (
    ("a GitHub token", re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_[A-Za-z0-9_]{40,}\b")),
    ("a GitLab token", re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}")),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")),
    ("an AWS key", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")),
    ("an OpenAI or Anthropic key", re.compile(r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a password in an address", re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@'\"$]+:[^/\s:@'\"$]+@")),
    ("an authorization header", re.compile(r"(?i)\bauthorization:\s*(?:bearer|basic)\s+[A-Za-z0-9+/=._-]{12,}")),
)
STEP_SECRET = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)=(?!\$)(\"[^\"]+\"|'[^']+'|[^\s\"'$;&|)]+)")
"""A variable with a value inside a build step's line."""

FORBIDDEN_FILES = (
    (".netrc", "logins for servers"),
    (".pypirc", "logins for package indexes"),
    (".git-credentials", "logins for git servers"),
    ("id_rsa", "a private SSH key"),
    ("id_ed25519", "a private SSH key"),
    ("id_ecdsa", "a private SSH key"),
)
FORBIDDEN_ENDINGS = (
    ("/.docker/config.json", "logins for registries"),
    ("/.aws/credentials", "AWS keys"),
    ("/.config/gcloud/application_default_credentials.json", "Google Cloud keys"),
    ("/.cache/huggingface/token", "a Hugging Face token"),
    ("/run/secrets", "a mounted secret"),
)

_READ = re.compile(
    r"(?:/pip\.conf|/\.pip/pip\.conf|/\.config/uv/uv\.toml|/etc/uv/uv\.toml|^/etc/apt/.*|^/etc/environment"
    r"|^/etc/profile(?:\.d/.*)?|/\.(?:bashrc|profile|bash_profile|bash_history|python_history|gitconfig|npmrc|wgetrc"
    r"|curlrc|env)|^/etc/(?:wgetrc|gitconfig)|\.(?:pem|key))$"
)
"""Files in which settings and keys of a build stay behind; their text is looked at."""

_SWITCH = re.compile(r"(?i)(?:\d+|true|false|yes|no|on|off|none)")
"""Values of switches and limits whose names speak of tokens."""

_OWN_PLACES = re.compile(
    r"^/(?:usr/local/(?:s?bin|etc)|root|home|srv|app|workspace|vllm-workspace)/(?!.*(?:-packages|\.cache)/)"
)
"""Where whoever builds an image puts files of their own: values are looked for there, settings are not."""

_MAX_OWN = 64 << 10
_MAX_READ = 256 << 10


def keeps(path: str, size: int) -> bool:
    """Tell whether a file's bytes are needed to look for secrets."""
    return (size <= _MAX_READ and _READ.search(path) is not None) or (
        0 < size <= _MAX_OWN and _OWN_PLACES.match(path) is not None
    )


def check_secrets(image: Image) -> Found:
    """Look into variables, labels, history and the files where settings live."""
    excused = image.excused("secrets")
    problems = [
        sentence
        for place, sentence in (*_settings(image), *_history(image), *_files(image))
        if not excused.allows(place)
    ]
    measured = {
        "variables": len(image.facts.environment),
        "labels": len(image.facts.labels),
        "history": len(image.facts.history),
        **excused.measured(),
    }
    return Found(tuple(problems), measured)


def _settings(image: Image) -> Iterator[tuple[str, str]]:
    for kind, values in (("variable", image.facts.environment), ("label", image.facts.labels)):
        for name, value in sorted(values.items()):
            if trouble := _trouble(name, value):
                yield f"{kind} {name}", f"{kind} {name} holds {trouble}"


def _trouble(name: str, value: str) -> str:
    if not value:
        return ""
    if PROXY.fullmatch(name):
        return "the build's proxy"
    if PACKAGE_INDEX.match(name):
        return "the build's package index"
    if SECRET_NAME.search(name) and not _SWITCH.fullmatch(value):
        return "what its name calls a secret"
    return next((what for what, pattern in SECRET_VALUES if pattern.search(value)), "")


def _history(image: Image) -> Iterator[tuple[str, str]]:
    for number, step in enumerate(reversed(image.facts.history), start=1):
        place = f"history {number}"
        start = " ".join(step.split())[:40]
        for name, value in STEP_SECRET.findall(step):
            if trouble := _trouble(name, value.strip("\"'")):
                yield place, f"step {number} of the history ({start}...) holds {trouble}: {name}"
        for what, pattern in SECRET_VALUES:
            if pattern.search(step):
                yield place, f"step {number} of the history holds {what}"


def _files(image: Image) -> Iterator[tuple[str, str]]:
    owned = image.python.owners()
    for entry in image.root.files():
        if entry.path not in owned:
            for sentence in file_troubles(entry.path, entry.size, image.root.text(entry.path)):
                yield entry.path, sentence


def file_troubles(path: str, size: int, text: str | None) -> Iterator[str]:
    """Yield what makes a file one that must not leave the build.

    Args:
        text: what it holds, where its bytes were kept.
    """
    if not size:
        return
    name = posixpath.basename(path)
    reason = next((why for known, why in FORBIDDEN_FILES if known == name), "") or next(
        (why for ending, why in FORBIDDEN_ENDINGS if path.endswith(ending) or path.startswith(f"{ending}/")), ""
    )
    if reason:
        yield f"{path} holds {reason}"
    elif keeps(path, size):
        yield from _text(path, text or "")


def _text(path: str, text: str) -> Iterator[str]:
    for what, pattern in SECRET_VALUES:
        if pattern.search(text):
            yield f"{path} holds {what}"
    if not _READ.search(path):
        return
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "//"))]
    if any(PROXY.search(line) or re.match(r"(?i)Acquire::[a-z]+::Proxy", line) for line in lines):
        yield f"{path} sets the build's proxy"
    if path.endswith("pip.conf") and any(re.match(r"(?i)(?:extra-)?index-url|find-links", line) for line in lines):
        yield f"{path} names the build's package index"
