"""How drafts fare: the probability that the target takes a node, by depth and rank, and the trees that follow.

Rounds are of kinds (text is easy or hard to guess), each with its share. Within a kind, `ranks[d][r]` is the
probability that the child of rank r at depth d + 1 is the target's token, given that the walk has reached its parent.
"""

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RoundKind:
    share: float
    ranks: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise ValueError("acceptance.share: must be above 0")
        for depth, line in enumerate(self.ranks):
            if not line or min(line) < 0 or sum(line) > 1 + 1e-9 or list(line) != sorted(line, reverse=True):
                raise ValueError(f"acceptance.ranks[{depth}]: probabilities that fall and add up to 1 at most")


@dataclass(frozen=True, kw_only=True)
class DraftTree:
    """Nodes in best-first order: `scores[i]` is the probability that the whole path to node i + 1 is taken,
    `children[n]` the (node, probability) of what hangs on node n; 0 is the root.
    """

    scores: tuple[float, ...]
    children: tuple[tuple[tuple[int, float], ...], ...]

    def walk(self, nodes: int, draws: random.Random) -> int:
        """Tokens that a round commits when the target looks at the first `nodes` nodes: the path's and one more."""
        node, committed = self._child(0, draws), 1
        while node is not None and node <= nodes:
            node, committed = self._child(node, draws), committed + 1
        return committed

    def _child(self, node: int, draws: random.Random) -> int | None:
        """The child that carries the target's token, if any does."""
        luck = draws.random()
        for child, probability in self.children[node]:
            luck -= probability
            if luck < 0:
                return child
        return None

    def expected(self, nodes: int) -> float:
        """Mean of `walk`."""
        return 1 + sum(self.scores[:nodes])


def best_first(kind: RoundKind, nodes: int) -> DraftTree:
    """The `nodes` most probable paths; fewer when the kind has no more."""
    order = itertools.count()
    # (-score, tie, parent, depth, probability of the node below its parent)
    heap = [(-p, next(order), 0, 1, p) for p in kind.ranks[0] if p > 0]
    heapq.heapify(heap)
    scores: list[float] = []
    children: list[list[tuple[int, float]]] = [[]]
    while heap and len(scores) < nodes:
        negative, _, parent, depth, probability = heapq.heappop(heap)
        scores.append(-negative)
        children.append([])
        children[parent].append((len(scores), probability))
        if depth < len(kind.ranks):
            for p in kind.ranks[depth]:
                if p > 0:
                    heapq.heappush(heap, (negative * p, next(order), len(scores), depth + 1, p))
    return DraftTree(scores=tuple(scores), children=tuple(map(tuple, children)))


def chain(kind: RoundKind, nodes: int) -> DraftTree:
    """First choices only."""
    return best_first(RoundKind(share=kind.share, ranks=tuple(line[:1] for line in kind.ranks)), nodes)


def mean_expected(kinds: Sequence[RoundKind], trees: Sequence[DraftTree], nodes: int) -> float:
    """Accepted length over all kinds."""
    total = sum(kind.share for kind in kinds)
    return sum(kind.share * tree.expected(nodes) for kind, tree in zip(kinds, trees, strict=True)) / total
