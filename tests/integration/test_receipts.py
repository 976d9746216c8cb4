"""The build lock between real processes, killed ones too."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from seatrial.model.errors import UsageError
from seatrial.ports.receipts import alone

CONTEXT = multiprocessing.get_context("fork")


def _hold(lock: Path, held: Any, free: Any) -> None:
    with alone(lock, "build of 0.28.0-cpu"):
        held.set()
        free.wait(60)


def test_a_second_process_is_told_the_first_ones_pid_and_a_killed_one_frees_the_lock(tmp_path: Path) -> None:
    lock, held, free = tmp_path / "lock", CONTEXT.Event(), CONTEXT.Event()
    holder = CONTEXT.Process(target=_hold, args=(lock, held, free))
    holder.start()
    try:
        assert held.wait(60)
        here = f"another build of 0.28.0-cpu runs here .pid {holder.pid}."
        with pytest.raises(UsageError, match=here), alone(lock, "build of 0.28.0-cpu"):
            raise AssertionError("two builds at once")
    finally:
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        holder.join(60)
    with alone(lock, "build of 0.28.0-cpu"):
        pass


def _count(lock: Path, number: Path) -> None:
    for _ in range(50):
        with alone(lock, "count", wait=60):
            number.write_text(str(int(number.read_text()) + 1))


def test_those_who_wait_take_turns(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    workers = [CONTEXT.Process(target=_count, args=(tmp_path / "lock", number)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert number.read_text() == "150"
