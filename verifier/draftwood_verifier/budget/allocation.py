"""The nodes of all trees of a step that are worth looking at together: the best N of the batch, for the N that pays.

Plain Python: a batch has tens to hundreds of nodes, for which arrays are slower.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """`entries` of each tree that are looked at, ascending; `tokens` is what the step should commit in all."""

    entries: list[list[int]]
    nodes: int
    tokens: float
    rate: float  # tokens a second


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a step costs. edges, seconds [E]: numbers of nodes, ascending from 0, and what a step with so many takes.

    `sequences` decode in it, with or without a tree; `pinned_nodes` are looked at whatever is decided here.
    """

    sequences: int
    pinned_nodes: int
    edges: tuple[int, ...]
    seconds: list[float]
    wait_s: float

    def rate(self, nodes: int, gain: float) -> float:
        """Tokens a second with so many nodes, of which `gain` should be accepted."""
        return (self.sequences + gain) / (self._seconds(nodes + self.pinned_nodes) + self.wait_s)

    def best_number(self, gains: list[float]) -> tuple[int, float]:
        """Of none, every edge that there are nodes for, and all nodes: the number with the highest rate, and that rate.

        gains: of the best n nodes.
        """
        every = len(gains) - 1
        best, best_rate = 0, self.rate(0, 0.0)
        for edge, took in zip(self.edges, self.seconds, strict=True):
            number = edge - self.pinned_nodes
            if number >= every:
                break
            if number > 0 and (rate := (self.sequences + gains[number]) / (took + self.wait_s)) > best_rate:
                best, best_rate = number, rate
        rate = self.rate(every, gains[every])
        return (every, rate) if rate > best_rate else (best, best_rate)

    def _seconds(self, nodes: int) -> float:
        """Linear between edges and constant beyond the last."""
        edges, seconds = self.edges, self.seconds
        i = bisect_left(edges, nodes)
        if i == len(edges):
            return seconds[-1]
        if edges[i] == nodes:
            return seconds[i]
        share = (nodes - edges[i - 1]) / (edges[i] - edges[i - 1])
        return seconds[i - 1] * (1 - share) + seconds[i] * share


def allocate(scores: list[list[float]], offer: Offer) -> Allocation:
    """N* of DESIGN 4: argmax over edges N of (sequences + sum of the N best scores) / (C(N) + wait).

    scores: chances of the nodes of each tree, a child's never above its parent's, parents first; so the best N are a
    tree in every tree.
    """
    flat = [score for tree in scores for score in tree]
    # Stable, so that of equals the parent comes first.
    places = sorted(range(len(flat)), key=flat.__getitem__, reverse=True)
    gains = list(accumulate([flat[place] for place in places], initial=0.0))
    nodes, rate = offer.best_number(gains)
    entries = _by_tree(sorted(places[:nodes]), [len(tree) for tree in scores])
    return Allocation(entries=entries, nodes=nodes, tokens=offer.sequences + gains[nodes], rate=rate)


def _by_tree(places: list[int], sizes: list[int]) -> list[list[int]]:
    """Ascending places in all trees, one after the other, as entries of each."""
    starts = list(accumulate(sizes, initial=0))
    cuts = [bisect_left(places, start) for start in starts]
    return [
        [place - start for place in places[low:high]]
        for start, (low, high) in zip(starts, pairwise(cuts), strict=False)
    ]
