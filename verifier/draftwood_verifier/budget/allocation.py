"""The nodes of all trees of a step that are worth looking at together: the best N of the batch, for the N that pays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """`entries` of each tree that are looked at, ascending; `tokens` is what the step should commit in all."""

    entries: list[NDArray[np.intp]]
    nodes: int
    tokens: float
    rate: float  # tokens a second


def allocate(
    scores: list[NDArray[np.float64]],
    *,
    sequences: int,
    pinned_nodes: int,
    edges: NDArray[np.float64],
    seconds: NDArray[np.float64],
    wait_s: float,
) -> Allocation:
    """N* of DESIGN 4: argmax over edges N of (sequences + sum of the N best scores) / (C(N) + wait).

    scores: chances of the nodes of each tree, a child's never above its parent's, parents first; so the best N are a
    tree in every tree. `sequences` decode in this step, with or without a tree; `pinned_nodes` are looked at whatever
    is decided here. edges, seconds [E]: numbers of nodes and what a step with so many takes.
    """
    flat = np.concatenate([*scores, np.zeros(0)])
    # Stable, so that of equals the parent comes first.
    order = np.argsort(-flat, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum(flat[order])])
    numbers = _candidates(edges - pinned_nodes, len(flat))
    rates = (sequences + gains[numbers]) / (np.interp(numbers + pinned_nodes, edges, seconds) + wait_s)
    best = int(rates.argmax())
    count = int(numbers[best])
    taken = np.zeros(len(flat), np.bool_)
    taken[order[:count]] = True
    ends = np.cumsum([len(s) for s in scores])[:-1]
    return Allocation(
        entries=[np.flatnonzero(part) for part in np.split(taken, ends)] if scores else [],
        nodes=count,
        tokens=float(sequences + gains[count]),
        rate=float(rates[best]),
    )


def _candidates(edges: NDArray[np.float64], nodes: int) -> NDArray[np.intp]:
    """None, every edge that there are nodes for, and all nodes."""
    inside = edges[(edges > 0) & (edges < nodes)]
    return np.unique(np.concatenate([[0], inside, [nodes]])).astype(np.intp)
