"""Do one thing to many items in a few threads; the first error stops the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from seatrial.model.errors import Interrupted

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def in_parallel(
    work: Callable[[ItemT], ResultT], items: Sequence[ItemT], threads: int, stop: threading.Event | None = None
) -> list[ResultT]:
    """Return `work` of every item, in the items' order.

    When one fails, or Ctrl-C comes, what has not begun is dropped, `stop` is set for those that look at it, and the
    first error that is not its consequence is raised.
    """
    halt = stop or threading.Event()

    def guarded(item: ItemT) -> ResultT:
        if halt.is_set():
            raise Interrupted("dropped after an error elsewhere")
        try:
            return work(item)
        except BaseException:
            halt.set()
            raise

    pool = ThreadPoolExecutor(max_workers=max(1, min(threads, len(items))))
    futures: list[Future[ResultT]] = []
    try:
        futures = [pool.submit(guarded, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
    except BaseException:
        halt.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(wait=True, cancel_futures=True)
    errors = [error for future in futures if not future.cancelled() and (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, Interrupted)):
        raise error
    return [future.result() for future in futures]
