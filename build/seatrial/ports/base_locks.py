"""Base locks as files: written by a command, read back only when no hand has changed them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Table

from seatrial.model.base import BaseLock
from seatrial.model.errors import LockError, UsageError
from seatrial.model.values import digest_of, parse_data, parse_toml
from seatrial.ports.files import write_atomic

VERSION = re.compile(r"^\d+\.\d+\.\d+(\.post\d+)?$")
"""What a base may be called; the same as in the lock's model."""
HEADER = """\
One upstream vLLM release, pinned. Written by `nox -s lock-base -- {version}`: do not edit, a hand edit is refused.
Files are named by content; where they are fetched from is the user's pip configuration.
"""


def sealed(data: dict[str, Any]) -> BaseLock:
    """Return a lock over plain data, its digest filled in."""
    draft = parse_data(BaseLock, {**data, "content_sha256": "0" * 64}, f"base {data.get('version', '')}")
    return draft.model_copy(update={"content_sha256": _content_digest(draft)})


def _content_digest(lock: BaseLock) -> str:
    return digest_of(lock.model_dump(mode="json", by_alias=True, exclude={"content_sha256"}))


def write_lock(lock: BaseLock, path: Path) -> None:
    """Write a lock as TOML that people can read, in one step."""
    document = tomlkit.document()
    for line in HEADER.format(version=lock.version).splitlines():
        document.add(tomlkit.comment(line))
    data = lock.model_dump(mode="json", by_alias=True, exclude_none=True)
    content = data.pop("content_sha256")
    for key in ("schema", "version"):
        document[key] = data.pop(key)
    document["content_sha256"] = content
    for key in ("artifacts", "comparisons"):
        tables = tomlkit.aot()
        for entry in data.pop(key):
            tables.append(_table(entry))
        data[key] = tables
    for key in ("source", "torch"):
        document[key] = _table(data[key])
    for key in ("artifacts", "comparisons"):
        document[key] = data[key]
    write_atomic(path, tomlkit.dumps(document).encode())


def _table(entry: dict[str, Any]) -> Table:
    table = tomlkit.table()
    for key, value in entry.items():
        if isinstance(value, list):
            array = tomlkit.array()
            array.extend(value)
            table[key] = array.multiline(len(value) > 1)
        else:
            table[key] = value
    return table


def load_base(bases: Path, version: str) -> BaseLock:
    """Return the lock of a version from the folder of locks.

    Raises:
        UsageError: there is none; names those that exist.
        LockError: malformed, edited by hand, or another version's.
    """
    path = bases / f"{version}.toml"
    if not VERSION.match(version) or not path.is_file():
        known = ", ".join(sorted(entry.stem for entry in bases.glob("*.toml"))) or "none"
        raise UsageError(
            f"there is no base {version!r}",
            why=f"{bases.name}/ has: {known}",
            do="choose one of these, or run: nox -s lock-base -- VERSION",
        )
    lock = load_lock(path)
    if lock.version != version:
        raise LockError(f"{path} is the lock of {lock.version}", do="restore it from git")
    return lock


def load_lock(path: Path) -> BaseLock:
    """Return a lock after checking that it is what the command wrote.

    Raises:
        LockError: missing, malformed or edited by hand.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path} cannot be read", why=str(error), do="restore it from git") from None
    lock = parse_toml(BaseLock, text, str(path))
    if _content_digest(lock) != lock.content_sha256:
        raise LockError(
            f"{path} was edited by hand",
            why="its content does not have the digest content_sha256 that it states",
            do=f"run: nox -s lock-base -- {lock.version} (or restore it from git)",
        )
    return lock
