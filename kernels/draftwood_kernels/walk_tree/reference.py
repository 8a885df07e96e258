"""Greedy walks share one argmax; sampled ones draw lazily, only at rows that the walk visits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.sample import SamplingParams, draw


@dataclass(frozen=True, kw_only=True)
class TreeWalk:
    """One tree over logit rows: the root is row `first_row`, node i (from 1) the i-th row after it."""

    first_row: int
    token_ids: NDArray[np.int32]  # [N]
    parents: NDArray[np.int32]  # [N]; 0 is the root, node i is entry i - 1
    position: int  # absolute position of the first token drawn
    sampling: SamplingParams


def walk_trees(logits: torch.Tensor, walks: list[TreeWalk]) -> list[tuple[list[int], list[int]]]:
    best: list[int] = logits.argmax(dim=-1).tolist() if any(walk.sampling.is_greedy for walk in walks) else []
    rows: NDArray[np.float32] = logits.numpy()
    return [follow(walk, _chooser(walk, best, rows)) for walk in walks]


def _chooser(walk: TreeWalk, best: list[int], rows: NDArray[np.float32]) -> Callable[[int, int], int]:
    if walk.sampling.is_greedy:
        return lambda node, _: best[walk.first_row + node]
    return lambda node, depth: draw(rows[walk.first_row + node], walk.sampling, walk.position + depth)


def follow(walk: TreeWalk, choose: Callable[[int, int], int]) -> tuple[list[int], list[int]]:
    """The path of one tree; choose(node, depth) -> the token drawn there."""
    keys = zip(walk.parents.tolist(), walk.token_ids.tolist(), strict=True)
    children = {key: node for node, key in enumerate(keys, start=1)}
    tokens: list[int] = []
    nodes: list[int] = []
    node: int | None = 0
    while node is not None:
        token = choose(node, len(tokens))
        tokens.append(token)
        nodes.append(node)
        node = children.get((node, token))
    return tokens, nodes
