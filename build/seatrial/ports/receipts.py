"""Receipts of finished stages, and the lock that keeps two builds of one thing apart."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from seatrial.model.errors import LockError, UsageError
from seatrial.model.values import Frozen, Identifier, Sha256, canonical_json, digest_of, parse_json
from seatrial.ports.console import Console
from seatrial.ports.files import disk_errors, write_atomic

POLL = 0.05
"""Seconds between two tries for a lock that is waited for."""


class Receipt(Frozen):
    """What a stage made of what, as the file holds it."""

    schema_id: Literal["seatrial.receipt/1"] = Field(default="seatrial.receipt/1", alias="schema")
    stage: Identifier
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    content_sha256: Sha256
    """Digest over stage, inputs and outputs."""


class Receipts:
    """Keep one small file a finished stage, named by the stage's inputs.

    Args:
        folder: where the receipts stand; made when the first one is left.
        console: told when a receipt has to be passed over.
    """

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder
        self._console = console

    def key(self, stage: str, inputs: Mapping[str, Any]) -> str:
        """Return the digest that names a stage's work; the same inputs give the same key."""
        return digest_of({"stage": stage, "inputs": dict(inputs)})

    def path(self, stage: str, inputs: Mapping[str, Any]) -> Path:
        """Return where the receipt for these inputs stands or would stand."""
        return self._folder / f"{stage}-{self.key(stage, inputs)}.json"

    def find(
        self,
        stage: str,
        inputs: Mapping[str, Any],
        *,
        lost: Callable[[dict[str, Any]], str] = lambda outputs: "",
    ) -> dict[str, Any] | None:
        """Return the outputs that these inputs gave before, or None when the stage has to run.

        A receipt that cannot be read, or whose outputs are lost, counts as none, and a line says so.

        Args:
            lost: given the outputs, returns what of them is gone or changed; empty when all is there.
        """
        found = self._read(stage, inputs)
        if isinstance(found, Receipt):
            gone = lost(found.outputs)
            if not gone:
                return found.outputs
            found = gone
        if found:
            self._console.detail(f"{stage}: runs again: {found}")
        return None

    def _read(self, stage: str, inputs: Mapping[str, Any]) -> Receipt | str:
        """Return the receipt, or why there is none; an empty string when none was ever left."""
        path = self.path(stage, inputs)
        try:
            receipt = parse_json(Receipt, path.read_bytes(), path.name)
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            return f"its receipt cannot be read ({error.strerror})"
        except LockError as error:
            return f"its receipt is broken ({error.what})"
        if receipt.content_sha256 != _content(receipt.stage, receipt.inputs, receipt.outputs):
            return "its receipt was changed after it was written"
        if self.key(receipt.stage, receipt.inputs) != self.key(stage, inputs):
            return "its receipt is for other inputs"
        return receipt

    def leave(self, stage: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Write the receipt of a finished stage, whole or not at all.

        Inputs and outputs hold JSON types only.

        Raises:
            DiskError: no room, or the folder cannot be written.
        """
        receipt = Receipt(
            schema="seatrial.receipt/1",
            stage=stage,
            inputs=dict(inputs),
            outputs=dict(outputs),
            content_sha256=_content(stage, inputs, outputs),
        )
        write_atomic(self.path(stage, inputs), canonical_json(receipt.model_dump(mode="json", by_alias=True)) + b"\n")


def _content(stage: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> str:
    return digest_of({"stage": stage, "inputs": dict(inputs), "outputs": dict(outputs)})


@contextmanager
def alone(lock: Path, what: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file for as long as the block runs; the system frees it when the process ends in any way.

    The file stays behind: removing it would let two processes hold two files of one name.

    Args:
        lock: the lock file; its folder is made.
        what: what is done under the lock, for the message (`build of 0.28.0-cpu`).
        wait: seconds to wait for another holder before giving up.

    Raises:
        UsageError: another process holds it; names that process.
        DiskError: the file cannot be made.
    """
    with disk_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(handle, what, wait)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int, what: str, wait: float) -> None:
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(POLL)
                continue
            holder = re.match(rb"\d+", os.pread(handle, 32, 0))
            pid = f"pid {int(holder.group())}" if holder else "pid not known"
            raise UsageError(
                f"another {what} runs here ({pid})", do="wait until it has ended, and run the same again"
            ) from None
        else:
            return
