"""What one step costs, as this very process measures it: C(decoding sequences, draft nodes, context).

A grid of seconds, linear in between and beyond, times a scale that all of it shares: the machine as it is now, with
whatever else runs on it. Every step moves both, the scale at once and the points around its own slowly; so two costs
can be compared though one of them has not been seen for a while. What matters is how costs compare: noise in one of
two neighbours makes the budget choose the one that is underrated. So neighbours learn together, and little of each
step. Plain lists: arrays of this size take longer.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

# Draft nodes of a whole step at which costs are known and between which the budget chooses.
NODE_EDGES = (0, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Parts of a surprise, relative to what was expected, that the scale and a point that was often run take over. Steps
# vary by 15 to 20 % (two shared cores): with 0.05 for a point, what 24 or 48 nodes cost against 32 went up and down by
# 2 to 9 %, with this by 1 to 3 %, and the next step was foreseen as well.
_SCALE_RATE, _OWN_RATE = 0.2, 0.02
# Steps that the first measurement of a point counts for.
_MEASURED = 10
# What the next edge learns of what this one does; the one after it this much of that, and so on. So a curve keeps the
# shape that was measured at start-up, and bends only as a whole: with 0.37, over three edges, those that were never run
# wandered, and 64 nodes were taken to cost as much as 48. Fed with the steps of five runs, what the budget then chose
# was 0.1 to 0.6 % off the best size by steps timed alone, and 0.3 to 0.9 % before.
_ALONG = 0.8
# The plain step has a way of its own through the target, and is learned with trees as if so many edges lay between.
_PLAIN_APART = 5
# What disturbs a machine only ever makes it slower: a step counts as half as long again as expected at the utmost.
_MOST = 1.5
# What a point that was never run weighs against one that was run once, where they contradict each other.
_UNSEEN = 0.1
_SHORTEST_S = 1e-6
# Tokens of context within which one curve speaks for all.
_ALIKE = 64
# Before anything is known: a fixed part, and so much for every row.
_PRIOR_STEP_S = 2e-3
_PRIOR_ROW_S = 5e-5

Seconds = list[list[list[float]]]
# Two neighbouring grid lines and their weights.
_Weighted = tuple[tuple[int, float], tuple[int, float]]


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
    """seconds [context][sequences][nodes] over `axes`, at scale 1."""

    def __init__(self, axes: Axes, seconds: Seconds | None = None) -> None:
        self.axes = axes
        self.scale = 1.0
        prior = [[_PRIOR_STEP_S + _PRIOR_ROW_S * (s + n) for n in axes.nodes] for s in axes.sequences]
        self.seconds = [[_never_falling(line) for line in plane] for plane in seconds or [prior] * len(axes.context)]
        self._curves: dict[tuple[int, int], list[float]] = {}  # since the last step
        self._seen = [[[0.0] * len(axes.nodes) for _ in axes.sequences] for _ in axes.context]  # steps at each point

    def curve(self, sequences: int, context: float) -> list[float]:
        """Seconds at each of `axes.nodes`, never falling; index 0 is the plain step. Not to be written to."""
        key = sequences, int(context) // _ALIKE
        if key not in self._curves:
            self._curves[key] = self._curve(sequences, context)
        return self._curves[key]

    def cost(self, sequences: int, nodes: int, context: float) -> float:
        """Seconds of one step."""
        corners = _corners(self.axes.context, context, self.axes.sequences, sequences)
        return self.scale * self._mean(corners, _between(self.axes.nodes, nodes))

    def observe(self, sequences: int, nodes: int, context: float, seconds: float) -> None:
        """Learn from a step."""
        self._curves.clear()
        corners = _corners(self.axes.context, context, self.axes.sequences, sequences)
        places = _between(self.axes.nodes, nodes)
        base = self._mean(corners, places)
        surprise = min(seconds / (self.scale * base), _MOST) - 1
        # Beyond the grid the nearest line learns.
        lines = [(self.seconds[i][j], self._seen[i][j], weight) for i, j, weight in corners if weight > 0]
        places_run = [(k, weight) for k, weight in places if weight > 0]
        seen = sum(steps[k] * line_weight * weight for _, steps, line_weight in lines for k, weight in places_run)
        own = max(_OWN_RATE, 1 / (_MEASURED + seen))
        self.scale *= 1 + (1 - own) * _SCALE_RATE * surprise
        parts = _along(places_run, len(self.axes.nodes))
        # So that the point itself moves by its part of the surprise.
        moved = sum(weight * parts[k] for k, weight in places_run) * sum(weight * weight for *_, weight in lines)
        share = own * surprise * base / moved
        for line, steps, line_weight in lines:
            for k, part in enumerate(parts):
                line[k] = max(_SHORTEST_S, line[k] + share * line_weight * part)
            for k, weight in places_run:
                steps[k] += line_weight * weight

    def settled(self) -> Seconds:
        """`seconds` without contradictions: more nodes never take less."""
        return [
            [_settled(line, [_UNSEEN + n for n in seen]) for line, seen in zip(plane, seen_plane, strict=True)]
            for plane, seen_plane in zip(self.seconds, self._seen, strict=True)
        ]

    def _curve(self, sequences: int, context: float) -> list[float]:
        seconds, weights = [0.0] * len(self.axes.nodes), [_UNSEEN] * len(self.axes.nodes)
        for i, j, weight in _corners(self.axes.context, context, self.axes.sequences, sequences):
            line, seen = self.seconds[i][j], self._seen[i][j]
            for k in range(len(seconds)):
                seconds[k] += weight * line[k]
                weights[k] += abs(weight) * seen[k]
        return [max(_SHORTEST_S, self.scale * value) for value in _settled(seconds, weights)]

    def _mean(self, corners: list[tuple[int, int, float]], places: _Weighted) -> float:
        """Seconds at scale 1."""
        (low, low_weight), (high, high_weight) = places
        mean = 0.0
        for i, j, weight in corners:
            line = self.seconds[i][j]
            mean += weight * (low_weight * line[low] + high_weight * line[high])
        return max(_SHORTEST_S, mean)


def _never_falling(line: list[float]) -> list[float]:
    """Fewer nodes are not dearer: where they seem to be, the machine was disturbed when they were measured."""
    return list(accumulate(reversed(line), min))[::-1]


def _settled(line: list[float], weights: list[float]) -> list[float]:
    """The never falling line nearest to `line`, in squares by `weights` (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, points
    for value, weight in zip(line, weights, strict=True):
        mean, total, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, its_weight, its_count = pools.pop()
            mean = (before * its_weight + mean * total) / (its_weight + total)
            total, count = total + its_weight, count + its_count
        pools.append((mean, total, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def _along(places: list[tuple[int, float]], edges: int) -> list[float]:
    """How much edges learn of what was seen between these, by how far they are from it."""
    at = [-_PLAIN_APART, *range(1, edges)]
    centre = sum(at[k] * weight for k, weight in places) / sum(weight for _, weight in places)
    return [_ALONG ** abs(x - centre) for x in at]


def _corners(one: tuple[int, ...], x: float, other: tuple[int, ...], y: float) -> list[tuple[int, int, float]]:
    return [(i, j, v * w) for i, v in _between(one, x) for j, w in _between(other, y)]


def _between(axis: tuple[int, ...], x: float) -> _Weighted:
    """The grid lines around x and their weights; outside the grid one of them is negative."""
    if len(axis) == 1:
        return (0, 1.0), (0, 0.0)
    low = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    share = (x - axis[low]) / (axis[low + 1] - axis[low])
    return (low, 1 - share), (low + 1, share)
