"""The time between two steps, by how many sequences take part: the loop's own, or the wait for drafts."""

from draftwood_verifier.budget.size_class import size_class

# Before anything is known: nothing to speak of, so that drafting gets its trial.
_PRIOR_S = 1e-3
_RATE = 0.2
# Samples that make a plain mean before older ones fade.
_FIRST_SAMPLES = 5
# A sample counts as at most this many times what was known: a hiccup of the machine is not news about the loop.
_LONGEST = 2.0
# Nothing makes a gap shorter by so much but that what was known was seen under other conditions: while a drafter still
# worked off a larger batch, for instance. Such samples count for more.
_FAR, _FAR_RATE = 1.5, 0.5


class GapTable:
    """Seconds at powers of two of the batch, linear in between.

    A batch is never taken to be slower than a larger one that was measured; one larger than any is taken to be as quick
    as the largest: the hopeful guesses, which a trial then corrects.
    """

    def __init__(self, known: dict[int, float] | None = None) -> None:
        self.known: dict[int, float] = dict(known or {})
        self._samples = dict.fromkeys(self.known, _FIRST_SAMPLES)
        self._answers: dict[int, float] = {}  # since the last sample

    def seconds(self, batch: int) -> float:
        if batch not in self._answers:
            self._answers[batch] = self._seconds(batch)
        return self._answers[batch]

    def knows(self, batch: int) -> bool:
        """Whether a batch of about this size was measured."""
        return _measured_at(batch) in self.known

    def observe(self, batch: int, seconds: float) -> None:
        self._answers.clear()
        size = _measured_at(batch)
        count = self._samples[size] = self._samples.get(size, 0) + 1
        known = self.known.get(size, seconds)
        if count > _FIRST_SAMPLES:
            seconds = min(seconds, _LONGEST * known)
        rate = _FAR_RATE if seconds < known / _FAR else _RATE
        self.known[size] = known + max(rate, 1 / count) * (seconds - known)

    def lower(self, batch: int, seconds: float) -> None:
        """Take over a sample that was taken under worse conditions than the real thing: it is an upper bound.

        What got quicker for one size is taken to be as much quicker for all; and a draft of twice the sequences takes
        no more than twice as long, give or take as much again.
        """
        self._answers.clear()
        own = _measured_at(batch)
        known = self.known.setdefault(own, seconds)
        share = min(1.0, seconds / known)
        for size, value in self.known.items():
            bound = 2 * seconds * size / own if size > own else value
            self.known[size] = min(value * share, bound)

    def _seconds(self, batch: int) -> float:
        if not self.known:
            return _PRIOR_S
        below = [size for size in self.known if size <= batch]
        above = [size for size in self.known if size >= batch]
        if not below or not above:
            return self.known[max(below)] if below else min(self.known[size] for size in above)
        low, high = max(below), min(above)
        share = (batch - low) / (high - low) if high > low else 0.0
        own = self.known[low] * (1 - share) + self.known[high] * share
        return min(own, *(self.known[size] for size in above))


def _measured_at(batch: int) -> int:
    return 1 << size_class(batch)
