"""A ring between a loop that must not wait and the thread that makes metrics and spans of what happened in it."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_LOG = logging.getLogger(__name__)
_Record = TypeVar("_Record")

CAPACITY = 16_384
# Nobody is woken for a record: the thread looks by itself, and so does a scrape. What it does holds up the loop, which
# needs the interpreter too, so it is done in few goes, with warm caches: a step costs 0.6 times as much every 250 ms
# as every 50 ms.
_PERIOD_S = 0.25


class Recorder(Generic[_Record]):
    """`put` costs an append. `consume` runs for one record after the other, on the thread or in `drain`."""

    def __init__(self, consume: Callable[[_Record], None], capacity: int = CAPACITY) -> None:
        self.dropped = 0
        self._consume = consume
        self._capacity = capacity
        self._ring: deque[_Record] = deque()
        self._draining = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def put(self, record: _Record) -> None:
        """Never blocks; a record that finds the ring full is counted and lost. One thread puts."""
        if len(self._ring) >= self._capacity:
            self.dropped += 1
        else:
            self._ring.append(record)

    def drain(self, finally_: Callable[[], None] | None = None) -> None:
        """Give everything that waits to the consumer; returns once it is done with it, and `finally_` has run while
        nothing else is consumed."""
        with self._draining:
            for _ in range(len(self._ring)):
                try:
                    self._consume(self._ring.popleft())
                except Exception:
                    _LOG.exception("telemetry lost a record")
            if finally_ is not None:
                finally_()

    def close(self) -> None:
        """Take in what is left and end the thread."""
        self._closing.set()
        self._thread.join()
        self.drain()

    def _run(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            self.drain()
