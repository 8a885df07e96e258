"""Walks by multi-draft rejection sampling, for trees that were drawn from the draft's own distributions.

The children of a node at depth d were drawn from q_d without replacement, in the order of their ranks. The first is
accepted with chance min(1, p(x) / q_d(x)). When it is not, p becomes max(p - q_d, 0) and q_d loses x, both scaled back
to 1, and the next child is tried; when none is left, the token is drawn from what has become of p. So every token has
the law p of the target, whatever q is (Leviathan et al. 2023, theorem 1; Jeon et al. 2024, "Recursive speculative
decoding", for draws without replacement).

Two things must hold for it. The children of a node that are looked at are its first ones, and how many they are depends
on no token of the tree: shapes come from probabilities alone (`draft_trees.py`), and cuts from the same. And all
randomness is this process's own, from a generator that no peer can know: a drafter could lean on noise that it foresaw.

Every rank has its own tokens of every row. It draws their noise itself, rank 0 alone draws whether a child is accepted
and decides. How often the ranks gather depends on the trees' shapes, never on logits.

Shapes: K logit rows, D rows of drafts, V vocabulary, v tokens of this rank, B rows that are looked at together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.walk_tree import TreeWalk
from draftwood_verifier.parallel.groups import Ranks
from draftwood_verifier.parallel.keep import WideRow, truncate

Floats = NDArray[np.float64]
# Distributions held at once; a row of more would be memory for no gain.
_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class DrawnWalk:
    """`tree` was drawn from the rows of drafts from `draft_row` on: its nodes at depth d from row draft_row + d - 1."""

    tree: TreeWalk
    draft_row: int


@dataclass(slots=True)
class _Node:
    row: int  # of the target's logits
    draft_row: int  # what its children were drawn from
    walk: TreeWalk
    children: list[int]  # places in the tree
    chances: list[float]  # of each child to be accepted once those before it were not
    token: int = 0  # if none of them is


class RejectionSampler:
    """Decides over rows of which this rank has the tokens of `vocabulary`."""

    def __init__(self, ranks: Ranks, vocabulary: slice, random: np.random.Generator) -> None:
        self._ranks = ranks
        self._first = int(vocabulary.start)
        self._random = random

    def walk(
        self, logits: torch.Tensor, drafts: torch.Tensor, walks: Sequence[DrawnWalk]
    ) -> list[tuple[list[int], list[int]]]:
        """logits [K, v] and drafts [D, v], logits over temperature -> what `walk_trees` gives; without tokens elsewhere
        than on rank 0."""
        rows: NDArray[np.float32] = logits.numpy(force=True)
        laws = self._draft_laws(drafts.numpy(force=True))
        trees = [_nodes(walk) for walk in walks]
        nodes = [node for tree in trees for node in tree]
        for start in range(0, len(nodes), _ROWS):
            block = nodes[start : start + _ROWS]
            self._weigh(block, self._target_laws(rows, block), laws)
        return [self._follow(tree) if self._ranks.leads else ([], []) for tree in trees]

    def _target_laws(self, logits: NDArray[np.float32], block: list[_Node]) -> Floats:
        """What the request would be drawn from at each node, [B, v]."""
        params = [node.walk.sampling for node in block]
        temperatures = np.array([each.temperature for each in params], np.float32)
        # What is not a number is never drawn.
        scaled = np.nan_to_num(logits[[node.row for node in block]], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        scaled /= temperatures[:, None]
        best = self._ranks.gather(scaled.max(axis=1).astype(np.float64)).max(axis=0)
        weights = _weights(scaled, best)
        cut = [index for index, each in enumerate(params) if each.truncates]
        parts = [WideRow(scaled[index], np.float32(best[index]), params[index]) for index in cut]
        truncate(parts, self._ranks)
        for index, part in zip(cut, parts, strict=True):
            weights[index] = np.where(part.kept, part.weights, 0.0)
        return self._scaled_to_one(weights)

    def _draft_laws(self, drafts: NDArray[np.float32]) -> Floats:
        """[D, v]."""
        best = self._ranks.gather(drafts.max(axis=1).astype(np.float64)).max(axis=0)
        return self._scaled_to_one(_weights(drafts, best))

    def _weigh(self, block: list[_Node], target: Floats, laws: Floats) -> None:
        """Fill in chances and tokens; target [B, v] is used up."""
        draft = np.zeros_like(target)
        for index, node in enumerate(block):
            if node.children:
                draft[index] = laws[node.draft_row]
        for rank in range(max(len(node.children) for node in block)):
            tried = [index for index, node in enumerate(block) if len(node.children) > rank]
            self._try(block, tried, rank, target, draft)
        with np.errstate(divide="ignore"):
            scores = np.log(target) + self._random.gumbel(size=target.shape)
        places = scores.argmax(axis=1)
        offers = self._ranks.gather(np.stack([scores.max(axis=1), places + float(self._first)], axis=1))
        winners = offers[:, :, 0].argmax(axis=0)
        for index, node in enumerate(block):
            node.token = int(offers[winners[index], index, 1])

    def _try(self, block: list[_Node], tried: list[int], rank: int, target: Floats, draft: Floats) -> None:
        """The child of rank `rank` of the nodes `tried`: its chance, and what is left of both laws without it."""
        told = np.zeros((len(tried), 4))  # of the child and of this rank's part of what is left: target, draft
        left = np.maximum(target[tried] - draft[tried], 0.0)
        for place, index in enumerate(tried):
            node = block[index]
            own = int(node.walk.token_ids[node.children[rank] - 1]) - self._first
            if 0 <= own < target.shape[1]:
                told[place, :2] = target[index, own], draft[index, own]
                draft[index, own] = 0.0
        told[:, 2], told[:, 3] = left.sum(axis=1), draft[tried].sum(axis=1)
        sums = self._ranks.gather(told).sum(axis=0)
        for place, (index, (of_target, of_draft, kept, rest)) in enumerate(zip(tried, sums.tolist(), strict=True)):
            block[index].chances.append(min(1.0, of_target / of_draft) if of_draft > 0 else 0.0)
            # Nothing is left of two equal laws, and then nothing is ever rejected, but for rounding.
            if kept > 0:
                target[index] = left[place] / kept
            if rest > 0:
                draft[index] /= rest

    def _follow(self, tree: list[_Node]) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        nodes = [0]
        place = self._accepted(tree[0])
        while place:
            tokens.append(int(tree[0].walk.token_ids[place - 1]))
            nodes.append(place)
            place = self._accepted(tree[place])
        return [*tokens, tree[nodes[-1]].token], nodes

    def _accepted(self, node: _Node) -> int:
        """The child that is accepted, 0 for none."""
        for child, chance in zip(node.children, node.chances, strict=True):
            if self._random.random() < chance:
                return child
        return 0

    def _scaled_to_one(self, weights: Floats) -> Floats:
        """Rows [B, v] over their sums on all ranks; rows of nothing stay as they are."""
        sums = self._ranks.gather(weights.sum(axis=1)).sum(axis=0)
        weights /= np.where(sums > 0, sums, 1.0)[:, None]
        return weights


def _weights(scaled: NDArray[np.float32], best: Floats) -> Floats:
    """exp(scaled - best) of rows [B, v] with their bests [B]; nothing for a row whose best is not finite."""
    finite = np.isfinite(best)
    weights: Floats = np.exp(scaled - np.where(finite, best, 0.0)[:, None])
    weights[~finite] = 0.0
    return weights


def _nodes(walk: DrawnWalk) -> list[_Node]:
    """The root and all nodes of one tree, in its order."""
    tree = walk.tree
    depths = [0]
    children: list[list[int]] = [[] for _ in range(1 + len(tree.parents))]
    for place, parent in enumerate(tree.parents.tolist(), start=1):
        depths.append(depths[parent] + 1)
        children[parent].append(place)
    return [
        _Node(tree.first_row + place, walk.draft_row + depth, tree, children[place], [])
        for place, depth in enumerate(depths)
    ]
