"""The time between two steps, by how many sequences take part: the loop's own, or the wait for drafts."""

import math

# Before anything is known: nothing to speak of, so that drafting gets its trial.
_PRIOR_S = 1e-3
_RATE = 0.2
_LONGEST = 4.0


class GapTable:
    """Seconds at powers of two of the batch, linear in between.

    A batch larger than any that was measured is taken to be as quick as the largest that was: the hopeful guess, which
    a trial then corrects.
    """

    def __init__(self, known: dict[int, float] | None = None) -> None:
        self.known: dict[int, float] = dict(known or {})

    def seconds(self, batch: int) -> float:
        if not self.known:
            return _PRIOR_S
        below = [size for size in self.known if size <= batch]
        above = [size for size in self.known if size >= batch]
        if not below or not above:
            return self.known[max(below)] if below else self.known[min(above)]
        low, high = max(below), min(above)
        share = (batch - low) / (high - low) if high > low else 0.0
        return self.known[low] * (1 - share) + self.known[high] * share

    def knows(self, batch: int) -> bool:
        """Whether a batch of about this size was measured."""
        return _size(batch) in self.known

    def observe(self, batch: int, seconds: float) -> None:
        size = _size(batch)
        known = self.known.get(size)
        if known is None:
            self.known[size] = seconds
        else:
            self.known[size] += _RATE * (min(seconds, _LONGEST * known) - known)

    def lower(self, batch: int, seconds: float) -> None:
        """Take over a sample that was taken under worse conditions than the real thing: it is an upper bound."""
        size = _size(batch)
        self.known[size] = min(seconds, self.known.get(size, seconds))


def _size(batch: int) -> int:
    return int(2 ** round(math.log2(max(1, batch))))
