"""A bound on how many spans come into being, whatever the load."""

import threading
import time


class TokenBucket:
    """At most `per_second` in any second: a bucket of half of that, filled at half of that a second."""

    def __init__(self, per_second: float) -> None:
        self.refused = 0
        self._rate = self._size = self._left = per_second / 2
        self._filled_at = time.monotonic()
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """All `count` or none, which is counted."""
        with self._lock:
            now = time.monotonic()
            self._left = min(self._size, self._left + (now - self._filled_at) * self._rate)
            self._filled_at = now
            if self._left < count:
                self.refused += count
                return False
            self._left -= count
            return True
