"""A bound on how many spans come into being, whatever the load."""

import threading
import time

# What a full bucket gives at once, as a share of what it may give in a second; the rest of that is what it gets.
_AT_ONCE = 0.9


class TokenBucket:
    """At most `per_second` in any second, and a tenth of that in the long run: a few requests are traced as a whole,
    and many don't make more of them."""

    def __init__(self, per_second: float) -> None:
        self.refused = 0
        self._size = self._left = _AT_ONCE * per_second
        self._rate = per_second - self._size
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
