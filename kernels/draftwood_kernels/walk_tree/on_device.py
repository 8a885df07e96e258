"""Walks as host lists, by the kernels: every row of every tree is drawn in one launch, then all trees are walked.

Shapes: R logit rows, T trees.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.keep_bounds import KeepBounds
from draftwood_kernels.keep_bounds.kernel import keep_bounds
from draftwood_kernels.sample import SamplingParams
from draftwood_kernels.sample.kernel import sample_rows
from draftwood_kernels.walk_tree.kernel import FlatTrees, WalkedPaths, walk_sampled
from draftwood_kernels.walk_tree.reference import TreeWalk

# Of rows between the trees, which nobody reads.
_NOBODY = SamplingParams(temperature=0)


def walk_trees(logits: torch.Tensor, walks: list[TreeWalk]) -> list[tuple[list[int], list[int]]]:
    """See the package."""
    if not walks:
        return []
    device = logits.device
    params, positions = _rows(len(logits), walks)

    def column(read: Callable[[SamplingParams], float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([read(each) for each in params], dtype=dtype, device=device)

    temperature = column(lambda each: each.temperature, torch.float32)
    bounds: KeepBounds | None = None
    if any(each.truncates and not each.is_greedy for each in params):
        bounds = keep_bounds(
            logits,
            temperature,
            column(lambda each: each.top_k, torch.int64),
            column(lambda each: each.top_p, torch.float64),
            column(lambda each: each.min_p, torch.float64),
        )
    seeds = torch.from_numpy(np.array([each.seed for each in params], np.uint64).view(np.int64)).to(device)
    sampled = sample_rows(logits, temperature, seeds, torch.from_numpy(positions).to(device), bounds)
    return _walked(sampled, walks)


def _rows(count: int, walks: list[TreeWalk]) -> tuple[list[SamplingParams], NDArray[np.int64]]:
    """Whose every row is, and the absolute position of the token drawn there."""
    params, positions = [_NOBODY] * count, np.zeros(count, np.int64)
    for walk in walks:
        depths = [0]
        for parent in walk.parents.tolist():
            depths.append(depths[parent] + 1)
        rows = slice(walk.first_row, walk.first_row + len(depths))
        params[rows] = [walk.sampling] * len(depths)
        positions[rows] = walk.position + np.array(depths)
    return params, positions


def _walked(sampled: torch.Tensor, walks: list[TreeWalk]) -> list[tuple[list[int], list[int]]]:
    device, sizes = sampled.device, [len(walk.token_ids) for walk in walks]

    def place(array: NDArray[np.integer]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int32)).to(device)

    trees = FlatTrees(
        first_rows=place(np.array([walk.first_row for walk in walks])),
        offsets=place(np.cumsum([0, *sizes])),
        token_ids=place(np.concatenate([walk.token_ids for walk in walks])),
        parents=place(np.concatenate([walk.parents for walk in walks])),
    )
    shape = (len(walks), max(sizes) + 1)
    paths = WalkedPaths(
        nodes=torch.zeros(shape, dtype=torch.int32, device=device),
        tokens=torch.zeros(shape, dtype=torch.int32, device=device),
        lengths=torch.zeros(len(walks), dtype=torch.int32, device=device),
    )
    walk_sampled(sampled, trees, max(sizes), paths)
    rows = zip(paths.tokens.tolist(), paths.nodes.tolist(), paths.lengths.tolist(), strict=True)
    return [(tokens[:length], nodes[:length]) for tokens, nodes, length in rows]
