"""Numbers made of what clients saw."""

import math
from collections.abc import Iterable, Sequence

# Part of a window at each edge where tokens count in part only.
_EDGE = 0.15
# Below so many, none tells a median with 95 % confidence.
LEAST_VALUES = 6


def rate(arrivals: Iterable[tuple[float, int]], start: float, end: float) -> float:
    """Tokens a second between `start` and `end`; arrivals are (time, tokens).

    A step hands a token to every client at once. With sharp edges a window of 30 steps would be off by up to a step;
    here a token's weight rises from 0 to 1 within the first part of the window and falls within the last.
    """
    edge = _EDGE * (end - start)
    weighted = sum(
        tokens * min(1.0, (time - start) / edge, (end - time) / edge) for time, tokens in arrivals if start < time < end
    )
    return weighted / (end - start - edge)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all do not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Where the median of what the values are drawn from lies with this confidence, whatever their distribution.

    Raises ValueError for too few values to say so.
    """
    ordered, count = sorted(values), len(values)
    outside, chance, rank = 0.0, 0.5**count, 0
    # The median is below the k-th smallest value when fewer than k fall below it.
    while outside + chance <= (1 - confidence) / 2:
        outside += chance
        rank += 1
        chance *= (count - rank + 1) / rank
    if not rank:
        raise ValueError(f"{count} values don't tell a median with confidence {confidence:g}")
    return ordered[rank - 1], ordered[-rank]


def sign_test(differences: Iterable[float]) -> float:
    """Chance of as few positive differences as these, or fewer, if either sign were as likely; zeros do not count."""
    signs = [difference > 0 for difference in differences if difference != 0]
    wins, pairs = sum(signs), len(signs)
    return float(sum(math.comb(pairs, k) for k in range(wins + 1)) / 2**pairs)
