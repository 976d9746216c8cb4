"""What upstream itself says of a release: the official wheel's metadata and licences, read by range."""

from __future__ import annotations

import email
from dataclasses import dataclass
from hashlib import sha256

from seatrial.model.base import BaseLock, Role
from seatrial.model.errors import IntegrityError
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index, Wanted
from seatrial.ports.records import checked, record_hashes
from seatrial.ports.remote_zip import open_remote


@dataclass(frozen=True, slots=True)
class OfficialText:
    """METADATA of the official wheel, and its licence files by the names that METADATA uses."""

    metadata: bytes
    licences: dict[str, bytes]


def read_official(lock: BaseLock, *, cache: Cache, index: Index, console: Console) -> OfficialText:
    """Return the official wheel's text files; each is checked against RECORD, and RECORD against the lock.

    Raises:
        IntegrityError: RECORD is not the locked one, or a file is not what RECORD says.
        FetchError: the wheel is not offered or does not answer.
    """
    artifact = lock.artifact(Role.OFFICIAL_WHEEL)
    wheel = open_remote(
        index,
        Wanted(artifact.distribution, artifact.file, artifact.sha256, artifact.size),
        cache=cache,
        console=console,
    )
    record = wheel.record()
    if artifact.record_sha256 is not None and sha256(record).hexdigest() != artifact.record_sha256:
        raise IntegrityError(
            f"the RECORD of {artifact.file} is not the one in its lock",
            do="check the index or mirror that pip is configured for",
        )
    hashes = record_hashes(record)
    metadata = checked(name := f"{wheel.dist_info}/METADATA", wheel.read(name), hashes)
    licences = {}
    for name in email.message_from_bytes(metadata).get_all("License-File") or []:
        member = f"{wheel.dist_info}/licenses/{name}"
        if member in wheel.names:
            licences[name] = checked(member, wheel.read(member), hashes)
    return OfficialText(metadata, licences)
