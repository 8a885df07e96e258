"""What one step costs, as this very process measures it: C(decoding sequences, draft nodes, context).

A grid of seconds, linear in between and beyond. Every step moves the corners around its own point, so the table follows
the machine; what was never run keeps what the start-up measurement or the prior said. Plain lists: a look-up is a few
microseconds, where arrays of this size take fifty.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, product

# Draft nodes of a whole step at which costs are known and between which the budget chooses.
NODE_EDGES = (0, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Parts of a surprise that the table takes over. What disturbs a machine only ever makes it slower: a quicker step is
# believed, a slower one little by little, and as twice the expected one at the utmost.
_QUICKER_RATE, _SLOWER_RATE = 0.5, 0.15
_SHORTEST_S = 1e-6
# Before anything is known: a fixed part, and so much for every row.
_PRIOR_STEP_S = 2e-3
_PRIOR_ROW_S = 5e-5

Seconds = list[list[list[float]]]


def batch_axis(max_batch: int) -> tuple[int, ...]:
    """Powers of two up to and including max_batch."""
    return (*(1 << k for k in range(max_batch.bit_length()) if 1 << k < max_batch), max_batch)


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Grid lines, ascending: sequences of a step, nodes of all their trees, mean tokens of context a sequence."""

    sequences: tuple[int, ...]
    nodes: tuple[int, ...] = NODE_EDGES
    context: tuple[int, ...] = (0, 1024)


class CostTable:
    """seconds [context][sequences][nodes] over `axes`."""

    def __init__(self, axes: Axes, seconds: Seconds | None = None) -> None:
        self.axes = axes
        self.seconds = seconds or [
            [[_PRIOR_STEP_S + _PRIOR_ROW_S * (s + n) for n in axes.nodes] for s in axes.sequences] for _ in axes.context
        ]

    def curve(self, sequences: int, context: float) -> list[float]:
        """Seconds at each of `axes.nodes`, never falling; index 0 is the plain step."""
        corners = list(_corners(self.axes.context, context, self.axes.sequences, sequences))
        rows = [self.seconds[i][j] for i, j, _ in corners]
        weights = [weight for _, _, weight in corners]
        curve = (sum(w * s for w, s in zip(weights, column, strict=True)) for column in zip(*rows, strict=True))
        # Fewer nodes are not dearer: where they seem to be, the machine was disturbed when they were measured.
        falling = accumulate(reversed(list(curve)), min)
        return [max(_SHORTEST_S, seconds) for seconds in reversed(list(falling))]

    def cost(self, sequences: int, nodes: int, context: float) -> float:
        """Seconds of one step."""
        (low, low_weight), (high, high_weight) = _between(self.axes.nodes, nodes)
        corners = _corners(self.axes.context, context, self.axes.sequences, sequences)
        lines = ((self.seconds[i][j], weight) for i, j, weight in corners)
        return max(_SHORTEST_S, sum(w * (low_weight * s[low] + high_weight * s[high]) for s, w in lines))

    def observe(self, sequences: int, nodes: int, context: float, seconds: float) -> None:
        """Learn from a step."""
        expected = self.cost(sequences, nodes, context)
        surprise = min(seconds, 2 * expected) - expected
        rate = _SLOWER_RATE if surprise > 0 else _QUICKER_RATE
        # Beyond the grid the nearest line learns.
        corners = [
            (self.seconds[i][j], k, max(weight, 0.0) * max(node_weight, 0.0))
            for i, j, weight in _corners(self.axes.context, context, self.axes.sequences, sequences)
            for k, node_weight in _between(self.axes.nodes, nodes)
        ]
        share = rate * surprise / sum(weight * weight for _, _, weight in corners)
        for line, k, weight in corners:
            line[k] = max(_SHORTEST_S, line[k] + share * weight)


def _corners(one: tuple[int, ...], x: float, other: tuple[int, ...], y: float) -> list[tuple[int, int, float]]:
    return [(i, j, v * w) for (i, v), (j, w) in product(_between(one, x), _between(other, y))]


def _between(axis: tuple[int, ...], x: float) -> tuple[tuple[int, float], tuple[int, float]]:
    """The grid lines around x and their weights; outside the grid one of them is negative."""
    if len(axis) == 1:
        return (0, 1.0), (0, 0.0)
    low = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    share = (x - axis[low]) / (axis[low + 1] - axis[low])
    return (low, 1 - share), (low + 1, share)
