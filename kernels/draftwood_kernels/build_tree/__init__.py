"""Draft marginals to token trees: the node_limit most probable prefixes, best first. One dispatch point.

Shapes: D depths, K candidates a depth, N nodes; of a batch: S sessions, R = S * D rows, V vocabulary.
"""

import torch

from draftwood_kernels.build_tree import reference
from draftwood_kernels.build_tree.reference import TreeArrays
from draftwood_kernels.build_tree.trees import MOST_DEPTHS, Candidates, DraftTrees
from draftwood_kernels.build_tree.wishes import NoiseRow, TreeWish, candidates_needed, grow_trees, perturb

__all__ = [
    "MOST_DEPTHS",
    "Candidates",
    "DraftTrees",
    "NoiseRow",
    "TreeArrays",
    "TreeWish",
    "best_first",
    "build_trees",
    "candidates_needed",
    "chain",
    "grow_trees",
    "perturb",
    "top_candidates",
    "top_scores",
]


def best_first(log_probs: list[list[float]], token_ids: list[list[int]], node_limit: int) -> TreeArrays:
    """The node_limit best prefixes of D independent marginals, in falling order of path probability.

    log_probs [D][K]: natural logarithms, at most 0, falling along K. token_ids [D][K]: their tokens, distinct within
    a row. Both are lists, because one host transfer and Python floats beat indexing arrays at these sizes.
    Returns token_ids int32 [N], parents int32 [N] (0 is the root, node i is entry i - 1), log_probs float32 [N].
    N < node_limit only when fewer prefixes have a probability above 0. K >= node_limit makes the result exact: a
    prefix whose last token has rank r has r better siblings, so ranks beyond node_limit - 1 never enter.
    """
    return reference.best_first(log_probs, token_ids, node_limit)


def chain(log_probs: list[float], token_ids: list[int], node_limit: int) -> TreeArrays:
    """The path through each depth's best token; log_probs [D], token_ids [D]; at most node_limit nodes."""
    return reference.chain(log_probs, token_ids, node_limit)


def top_candidates(logits: torch.Tensor, count: int) -> Candidates:
    """logits [R, V] -> the `count` most probable tokens of each row, ties by lower id; 1 <= count <= V.

    A row with NaN or infinity among its logits, or nothing but -inf, gets log_probs of NaN.
    """
    if logits.is_cuda:
        from draftwood_kernels.build_tree import kernel  # noqa: PLC0415

        return kernel.top_candidates(logits, count)
    return reference.top_candidates(logits, count)


def top_scores(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` highest of each row of logits [R, V], falling, ties by lower id, and their ids int64; both [R, K].

    What `top_candidates` finds, for rows of which others have the rest of the vocabulary. 1 <= count <= V.
    """
    return reference.top_scores(logits, count)


def build_trees(candidates: Candidates, node_limits: torch.Tensor, chains: torch.Tensor, most_nodes: int) -> DraftTrees:
    """One tree a session from its D rows of candidates, which follow one another; nothing waits for the host.

    node_limits int32 [S], from 1 and cut to `most_nodes`; chains int32 [S], 1 for the path of `chain`, else 0.
    A session with a depth whose best candidate is not finite has no nodes.
    """
    if node_limits.is_cuda:
        from draftwood_kernels.build_tree import kernel  # noqa: PLC0415

        return kernel.build_trees(candidates, node_limits, chains, most_nodes)
    return reference.build_trees(candidates, node_limits, chains, most_nodes)
