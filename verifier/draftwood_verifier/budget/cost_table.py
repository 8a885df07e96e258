"""What one step costs, as this very process measures it: C(decoding sessions, draft nodes, context).

A grid of seconds, linear in between and beyond. Every step moves the corners around its own point, so the table follows
the machine; what was never run keeps what the start-up measurement or the prior said.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Draft nodes of a whole step at which costs are known and between which the budget chooses.
NODE_EDGES = (0, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Part of a surprise that the table takes over; a step three times as long as expected is a hiccup of the machine.
_RATE = 0.15
_LONGEST = 3.0
_SHORTEST_S = 1e-6
# Before anything is known: a fixed part, and so much for every row.
_PRIOR_STEP_S = 2e-3
_PRIOR_ROW_S = 5e-5


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
    """seconds float64 [sequences, nodes, context] over `axes`."""

    def __init__(self, axes: Axes, seconds: NDArray[np.float64] | None = None) -> None:
        self.axes = axes
        self._nodes = np.array(axes.nodes, np.float64)
        if seconds is None:
            rows = np.add.outer(np.array(axes.sequences), self._nodes)
            seconds = np.repeat((_PRIOR_STEP_S + _PRIOR_ROW_S * rows)[:, :, None], len(axes.context), axis=2)
        self.seconds = seconds

    def curve(self, sequences: int, context: float) -> NDArray[np.float64]:
        """Seconds at each of `axes.nodes`; index 0 is the plain step."""
        low, share = _between(self.axes.sequences, sequences)
        plane = _mixed(self.seconds, low, share)
        low, share = _between(self.axes.context, context)
        seconds: NDArray[np.float64] = np.maximum(_mixed(plane.T, low, share), _SHORTEST_S)
        return seconds

    def cost(self, sequences: int, nodes: int, context: float) -> float:
        """Seconds of one step."""
        curve = self.curve(sequences, context)
        low, share = _between(self.axes.nodes, nodes)
        return max(_SHORTEST_S, float(_mixed(curve, low, share)))

    def observe(self, sequences: int, nodes: int, context: float, seconds: float) -> float:
        """Learn from a step; returns what it took over what was expected."""
        expected = self.cost(sequences, nodes, context)
        surprise = min(seconds, _LONGEST * expected) - expected
        corners = [_between(axis, x) for axis, x in zip(self._grid(), (sequences, nodes, context), strict=True)]
        weights = [np.array([1 - share, share]).clip(0, 1) for _, share in corners]
        weight = weights[0][:, None, None] * weights[1][:, None] * weights[2]
        block = self.seconds[tuple(slice(low, low + 2) for low, _ in corners)]
        block += _RATE * surprise * weight[tuple(slice(0, n) for n in block.shape)] / float((weight**2).sum())
        np.maximum(block, _SHORTEST_S, out=block)
        return seconds / expected

    def _grid(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return self.axes.sequences, self.axes.nodes, self.axes.context


def _between(axis: tuple[int, ...], x: float) -> tuple[int, float]:
    """The grid line below x and how far x is towards the next one; above 1 or below 0 outside the grid."""
    if len(axis) == 1:
        return 0, 0.0
    low = min(max(int(np.searchsorted(axis, x, side="right")) - 1, 0), len(axis) - 2)
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


def _mixed(values: NDArray[np.float64], low: int, share: float) -> NDArray[np.float64]:
    high = min(low + 1, len(values) - 1)
    mixed: NDArray[np.float64] = values[low] * (1 - share) + values[high] * share
    return mixed
