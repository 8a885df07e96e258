"""From a batch of draft logits to trees on the host, the same whoever has the head: the drafter or the verifier.

Shapes: W wishes, R rows of logits (every wish's depths, one wish after the other), V vocabulary or a piece of it.
At temperature > 0 the rows are perturbed with the noise that the verifier will add to the target's logits at the same
positions, so that the best children are the tokens it is likely to draw.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.build_tree import reference
from draftwood_kernels.build_tree.trees import Candidates

# (index of the wish, absolute position) -> Gumbel noise [V] of the wish's seed.
NoiseRow = Callable[[int, int], NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class TreeWish:
    """One tree that is to be built from `depths` rows of logits; without a seed it is not perturbed."""

    depths: int
    position: int  # absolute, of the tokens at depth 1
    is_chain: bool
    node_limit: int  # from 1
    temperature: float = 0.0
    seed: int | None = None


def perturb(logits: torch.Tensor, wishes: Sequence[TreeWish], noise: NoiseRow) -> None:
    """logits [R, V] become logits / temperature + noise, in place; those of greedy wishes stay as they are."""
    first = 0
    for index, wish in enumerate(wishes):
        rows = logits[first : first + wish.depths]
        first += wish.depths
        if wish.temperature > 0:
            rows /= wish.temperature
            if wish.seed is not None:
                for depth, row in enumerate(rows):
                    row += torch.from_numpy(noise(index, wish.position + depth)).to(row.device)


def candidates_needed(wishes: Sequence[TreeWish], vocab_size: int) -> int:
    """How many candidates a row the trees can use: one if all are chains, else the largest node limit.

    A tree of N nodes never uses rank N or beyond (see `best_first`), so the cut loses nothing.
    """
    return min(vocab_size, max((wish.node_limit for wish in wishes if not wish.is_chain), default=1))


def grow_trees(candidates: Candidates, wishes: Sequence[TreeWish]) -> list[reference.TreeArrays | None]:
    """The tree of each wish, from candidates of [R]; None where a depth's logits were not finite."""
    log_probs, token_ids = candidates.log_probs.tolist(), candidates.token_ids.tolist()
    trees = []
    first = 0
    for wish in wishes:
        rows = slice(first, first + wish.depths)
        first += wish.depths
        trees.append(_grow(log_probs[rows], token_ids[rows], wish))
    return trees


def _grow(log_probs: list[list[float]], token_ids: list[list[int]], wish: TreeWish) -> reference.TreeArrays | None:
    if not all(math.isfinite(row[0]) for row in log_probs):
        return None
    if wish.is_chain:
        return reference.chain([row[0] for row in log_probs], [row[0] for row in token_ids], wish.node_limit)
    return reference.best_first(log_probs, token_ids, wish.node_limit)
