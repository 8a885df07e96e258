"""The nodes of all trees of a step that are worth looking at together: the best N of the batch, for the N that pays.

Plain Python: a batch has tens to hundreds of nodes, for which arrays are slower.
"""

from dataclasses import dataclass
from itertools import accumulate


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
    places = [(t, entry) for t, tree in enumerate(scores) for entry in range(len(tree))]
    # Stable, so that of equals the parent comes first.
    places.sort(key=lambda place: -scores[place[0]][place[1]])
    gains = list(accumulate((scores[t][entry] for t, entry in places), initial=0.0))
    nodes, rate = _best_number(gains, sequences, pinned_nodes, edges, seconds, wait_s)
    entries: list[list[int]] = [[] for _ in scores]
    for t, entry in places[:nodes]:
        entries[t].append(entry)
    for chosen in entries:
        chosen.sort()
    return Allocation(entries=entries, nodes=nodes, tokens=sequences + gains[nodes], rate=rate)


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
    numbers = [0, *(edge - pinned_nodes for edge in edges if 0 < edge - pinned_nodes < every), every]
    best, best_rate = 0, 0.0
    for number in numbers:
        took = _between(edges, seconds, number + pinned_nodes) + wait_s
        rate = (sequences + gains[number]) / took
        if rate > best_rate:
            best, best_rate = number, rate
    return best, best_rate


def _between(edges: tuple[int, ...], seconds: list[float], number: int) -> float:
    """seconds at `number` nodes, linear between edges and constant beyond the last."""
    for i, edge in enumerate(edges):
        if number <= edge:
            if number == edge or i == 0:
                return seconds[i]
            share = (number - edges[i - 1]) / (edge - edges[i - 1])
            return seconds[i - 1] * (1 - share) + seconds[i] * share
    return seconds[-1]
