"""The nodes of all trees of a step that are worth looking at together: the best N of the batch, for the N that pays.

Plain Python: a batch has tens to hundreds of nodes, for which arrays are slower.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """`entries` of each tree that are looked at, ascending; `tokens` is what the step should commit in all."""

    entries: list[list[int]]
    nodes: int
    tokens: float
    rate: float  # tokens a second


def allocate(
    scores: list[list[float]],
    *,
    sequences: int,
    pinned_nodes: int,
    edges: tuple[int, ...],
    seconds: list[float],
    wait_s: float,
) -> Allocation:
    """N* of DESIGN 4: argmax over edges N of (sequences + sum of the N best scores) / (C(N) + wait).

    scores: chances of the nodes of each tree, a child's never above its parent's, parents first; so the best N are a
    tree in every tree. `sequences` decode in this step, with or without a tree; `pinned_nodes` are looked at whatever
    is decided here. edges, seconds [E]: numbers of nodes, ascending from 0, and what a step with so many takes.
    """
    flat = [score for tree in scores for score in tree]
    # Stable, so that of equals the parent comes first.
    places = sorted(range(len(flat)), key=flat.__getitem__, reverse=True)
    gains = list(accumulate([flat[place] for place in places], initial=0.0))
    nodes, rate = _best_number(gains, sequences, pinned_nodes, edges, seconds, wait_s)
    entries = _by_tree(sorted(places[:nodes]), [len(tree) for tree in scores])
    return Allocation(entries=entries, nodes=nodes, tokens=sequences + gains[nodes], rate=rate)


def _by_tree(places: list[int], sizes: list[int]) -> list[list[int]]:
    """Ascending places in all trees, one after the other, as entries of each."""
    starts = list(accumulate(sizes, initial=0))
    cuts = [bisect_left(places, start) for start in starts]
    return [
        [place - start for place in places[low:high]]
        for start, (low, high) in zip(starts, pairwise(cuts), strict=False)
    ]


def _best_number(
    gains: list[float],
    sequences: int,
    pinned_nodes: int,
    edges: tuple[int, ...],
    seconds: list[float],
    wait_s: float,
) -> tuple[int, float]:
    """Of none, every edge that there are nodes for, and all nodes: the number with the highest rate, and that rate."""
    every = len(gains) - 1
    best, best_rate = 0, sequences / (_between(edges, seconds, pinned_nodes) + wait_s)
    for edge, took in zip(edges, seconds, strict=True):
        number = edge - pinned_nodes
        if number >= every:
            break
        if number > 0 and (rate := (sequences + gains[number]) / (took + wait_s)) > best_rate:
            best, best_rate = number, rate
    rate = (sequences + gains[every]) / (_between(edges, seconds, every + pinned_nodes) + wait_s)
    return (every, rate) if rate > best_rate else (best, best_rate)


def _between(edges: tuple[int, ...], seconds: list[float], number: int) -> float:
    """seconds at `number` nodes, linear between edges and constant beyond the last."""
    i = bisect_left(edges, number)
    if i == len(edges):
        return seconds[-1]
    if edges[i] == number:
        return seconds[i]
    share = (number - edges[i - 1]) / (edges[i] - edges[i - 1])
    return seconds[i - 1] * (1 - share) + seconds[i] * share
