"""Best-first search over prefixes of independent marginals (DDTree, algorithm 1), one session or a batch."""

import heapq
import math
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.build_tree.trees import Candidates, DraftTrees

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


def top_candidates(logits: torch.Tensor, count: int) -> Candidates:
    """See the package."""
    wide = logits.float()
    _, ids = top_scores(wide, count)
    # NaN all over a row whose sum is not finite, and a third of the time of logsumexp.
    return Candidates(log_probs=wide.log_softmax(dim=1).gather(1, ids), token_ids=ids.int())


def top_scores(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See the package. torch's topk breaks ties as it likes, in their order and about who is in."""
    best, ids = logits.topk(min(count + 1, logits.shape[1]), dim=1)
    if not (best[:, 1:] == best[:, :-1]).any():
        return best[:, :count], ids[:, :count]
    if best.shape[1] > count:
        crowded = best[:, count - 1] == best[:, count]
        ids = ids[:, :count]
        if crowded.any():
            ids[crowded] = logits[crowded].argsort(dim=1, descending=True, stable=True)[:, :count]
    ids = ids.sort(dim=1).values
    order = logits.gather(1, ids).argsort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, order)
    return logits.gather(1, ids), ids


def build_trees(candidates: Candidates, node_limits: torch.Tensor, chains: torch.Tensor, most_nodes: int) -> DraftTrees:
    sessions = len(node_limits)
    trees = DraftTrees(
        token_ids=torch.zeros(sessions, most_nodes, dtype=torch.int32),
        parents=torch.zeros(sessions, most_nodes, dtype=torch.int32),
        log_probs=torch.zeros(sessions, most_nodes),
        counts=torch.zeros(sessions, dtype=torch.int32),
    )
    log_probs, token_ids = candidates.log_probs.tolist(), candidates.token_ids.tolist()
    depths = len(log_probs) // max(sessions, 1)
    for session, (limit, is_chain) in enumerate(zip(node_limits.tolist(), chains.tolist(), strict=True)):
        rows = slice(session * depths, (session + 1) * depths)
        if not all(math.isfinite(row[0]) for row in log_probs[rows]):
            continue
        if is_chain:
            best, tokens = ([row[0] for row in table[rows]] for table in (log_probs, token_ids))
            arrays = chain(best, tokens, min(limit, most_nodes))
        else:
            arrays = best_first(log_probs[rows], token_ids[rows], min(limit, most_nodes))
        nodes = len(arrays[0])
        trees.counts[session] = nodes
        for out, array in zip((trees.token_ids, trees.parents, trees.log_probs), arrays, strict=True):
            out[session, :nodes] = torch.from_numpy(array)
    return trees


def _arrays(tokens: list[int], parents: list[int], scores: list[float]) -> TreeArrays:
    return np.array(tokens, np.int32), np.array(parents, np.int32), np.array(scores, np.float32)
