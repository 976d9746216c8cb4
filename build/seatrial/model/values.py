"""Shared building blocks of the typed files: digests, strict frozen models, parse errors."""

from __future__ import annotations

import hashlib
import json
import tomllib
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from seatrial.model.errors import LockError

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A bare SHA-256 in lower-case hexadecimal."""

ImageDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
"""An OCI digest as engines and registries print it."""

Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
"""A full git commit id."""

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
"""A lower-case word with hyphens: fix ids, platform names, profile names."""


class Frozen(BaseModel):
    """Refuse unknown keys and any change after construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


ModelT = TypeVar("ModelT", bound=BaseModel)


def parse_toml(model: type[ModelT], text: str, origin: str) -> ModelT:
    """Parse TOML text into a model.

    Raises:
        LockError: the text is not TOML or does not fit the model; names the first wrong key.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LockError(f"{origin} is not valid TOML", why=str(error), do="restore it from git") from None
    return parse_data(model, data, origin)


def parse_json(model: type[ModelT], text: str | bytes, origin: str) -> ModelT:
    """Parse JSON text into a model.

    Raises:
        LockError: the text is not JSON or does not fit the model; names the first wrong key.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise LockError(f"{origin} is not valid JSON", why=str(error), do="delete it and run the verb again") from None
    return parse_data(model, data, origin)


def parse_data(model: type[ModelT], data: Any, origin: str) -> ModelT:
    """Validate plain data (JSON types) against a model, with one clear line on failure."""
    try:
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "top level"
        raise LockError(
            f"{origin}: {place}: {first['msg']}", do="restore it from git, or write it again with its command"
        ) from None


def canonical_json(data: Any) -> bytes:
    """Return the one JSON encoding that digests are taken over: sorted keys, no spaces, UTF-8."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(data: Any) -> str:
    """Return the bare SHA-256 of the canonical JSON of plain data."""
    return hashlib.sha256(canonical_json(data)).hexdigest()
