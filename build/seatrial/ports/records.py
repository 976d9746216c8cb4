"""A wheel's RECORD: what it says of each file, and whether a file is that."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable

from seatrial.model.errors import IntegrityError


def record_hashes(record: bytes) -> dict[str, str]:
    """Return the SHA-256 of every file that a RECORD lists with one, in hexadecimal, by path.

    Raises:
        IntegrityError: a line is not one of a RECORD.
    """
    hashes: dict[str, str] = {}
    try:
        for row in csv.reader(io.StringIO(record.decode())):
            if not row:
                continue
            path, stated, _ = row
            algorithm, _, value = stated.partition("=")
            if algorithm == "sha256":
                hashes[path] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    except (ValueError, UnicodeDecodeError) as error:
        raise IntegrityError("a wheel's RECORD cannot be read", why=str(error)) from None
    return hashes


def checked(name: str, data: bytes, hashes: dict[str, str]) -> bytes:
    """Return a member's bytes when they are what RECORD says, or raise IntegrityError."""
    if hashlib.sha256(data).hexdigest() != hashes.get(name):
        raise IntegrityError(
            f"{name} is not what its wheel's RECORD says", do="check the index or mirror that pip is configured for"
        )
    return data


def python_files(names: Iterable[str]) -> list[str]:
    """Return the Python files among a wheel's members, dist-info left out, sorted."""
    return sorted(name for name in names if name.endswith(".py") and not name.split("/")[0].endswith(".dist-info"))
