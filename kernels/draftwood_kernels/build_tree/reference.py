"""Best-first search over prefixes of independent marginals (DDTree, algorithm 1)."""

import heapq
import math
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

TreeArrays = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]


def best_first(log_probs: list[list[float]], token_ids: list[list[int]], node_limit: int) -> TreeArrays:
    """See the package. Each pop pushes the next sibling and the first child: the heap never exceeds N + 1 entries."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    # (negated score, order of birth, parent node, parent's score, depth, rank); the order breaks ties reproducibly.
    heap: list[tuple[float, int, int, float, int, int]] = []

    def push(parent: int, parent_score: float, depth: int, rank: int) -> None:
        if depth < len(log_probs) and rank < len(log_probs[depth]):
            # Rounding must not make a child better than its parent.
            score = parent_score + min(0.0, log_probs[depth][rank])
            if score > -math.inf:
                heapq.heappush(heap, (-score, len(tokens) * 2 + (rank > 0), parent, parent_score, depth, rank))

    push(0, 0.0, 0, 0)
    while heap and len(tokens) < node_limit:
        negated, _, parent, parent_score, depth, rank = heapq.heappop(heap)
        tokens.append(token_ids[depth][rank])
        parents.append(parent)
        scores.append(-negated)
        push(len(tokens), -negated, depth + 1, 0)
        push(parent, parent_score, depth, rank + 1)
    return _arrays(tokens, parents, scores)


def chain(log_probs: list[float], token_ids: list[int], node_limit: int) -> TreeArrays:
    """See the package. Ends before the first depth without a finite path probability."""
    scores = [score for score in accumulate(min(0.0, value) for value in log_probs[:node_limit]) if score > -math.inf]
    nodes = len(scores)
    return _arrays(token_ids[:nodes], list(range(nodes)), scores)


def _arrays(tokens: list[int], parents: list[int], scores: list[float]) -> TreeArrays:
    return np.array(tokens, np.int32), np.array(parents, np.int32), np.array(scores, np.float32)
