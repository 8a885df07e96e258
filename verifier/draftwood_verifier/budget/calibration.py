"""What the drafter's confidence in a node is worth, learned from the tokens that were committed.

A node's chance given its parent is the draft's own conditional probability, corrected by what became of nodes like it:
same temperature class, parent on the spine or not (the marginals of a block are conditioned on its argmax path), depth
and rank among its siblings, and similar confidence. Committed tokens do not depend on any draft, so trees that nobody
verified teach as much as others.
"""

import numpy as np
from numpy.typing import NDArray

from draftwood_wire.tree import TokenTree

_DEPTHS, _RANKS = 8, 4
# Upper ends of the classes of confidence.
_CONFIDENCE = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])
# Nodes that a class must have seen to weigh as much as the coarser estimate behind it.
_TRUST = 12.0
# Weight that a class keeps of its past when it sees another node: half of what counts is the last 1,400 nodes.
_KEEP = 0.9995


class Calibration:
    """Chances of nodes, for greedy and for sampled requests."""

    def __init__(self) -> None:
        shape = (2, 2, _DEPTHS, _RANKS, len(_CONFIDENCE) + 1)
        self._seen = np.zeros(shape)
        self._right = np.zeros(shape)
        # Of all confidences together: their sum, and how many were right.
        self._hoped = np.zeros(shape[:-1])
        self._came = np.zeros(shape[:-1])

    def scores(self, trees: list[TokenTree], sampled: list[bool]) -> list[NDArray[np.float64]]:
        """For each tree the chance of every node to be accepted, never above its parent's: float64 [nodes]."""
        return [self._tree_scores(tree, is_sampled) for tree, is_sampled in zip(trees, sampled, strict=True)]

    def observe(self, tree: TokenTree, tokens: list[int], *, sampled: bool) -> None:
        """The tokens that came after the tree's root, as far as they are known."""
        confidence, depths, ranks, spine = tree.confidence(), tree.depths(), tree.ranks(), tree.spine()
        node = 0
        for token in tokens:
            found = 0
            for child in tree.children(node):
                entry = child - 1
                right = int(tree.token_ids[entry]) == token
                found = child if right else found
                parent_on_spine = node == 0 or bool(spine[node - 1])
                where = (
                    int(sampled),
                    int(parent_on_spine),
                    min(int(depths[entry]), _DEPTHS) - 1,
                    min(int(ranks[entry]), _RANKS - 1),
                )
                self._count(where, float(confidence[entry]), right)
            if not found:
                return
            node = found

    def _tree_scores(self, tree: TokenTree, sampled: bool) -> NDArray[np.float64]:
        scores = np.ones(len(tree) + 1)
        if not len(tree):
            return scores[1:]
        depths, spine = tree.depths(), tree.spine()
        parents = tree.parents
        parent_on_spine = np.where(parents == 0, True, spine[parents - 1])
        chances = self._chances(
            (
                np.full(len(tree), int(sampled)),
                parent_on_spine.astype(np.intp),
                np.minimum(depths, _DEPTHS) - 1,
                np.minimum(tree.ranks(), _RANKS - 1),
            ),
            tree.confidence(),
        )
        for depth in range(1, int(depths.max()) + 1):
            entries = np.flatnonzero(depths == depth)
            scores[entries + 1] = scores[parents[entries]] * chances[entries]
        return scores[1:]

    def _chances(self, where: tuple[NDArray[np.integer], ...], confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Three layers: the draft's word, scaled by how often such nodes were right, bent by those as sure as it."""
        scale = (self._came[where] + _TRUST) / (self._hoped[where] + _TRUST)
        coarse = np.minimum(confidence * scale, 1.0)
        place = (*where, np.searchsorted(_CONFIDENCE, confidence))
        chances: NDArray[np.float64] = (self._right[place] + _TRUST * coarse) / (self._seen[place] + _TRUST)
        return chances

    def _count(self, where: tuple[int, int, int, int], confidence: float, right: bool) -> None:
        self._hoped[where] = self._hoped[where] * _KEEP + confidence
        self._came[where] = self._came[where] * _KEEP + right
        place = (*where, int(np.searchsorted(_CONFIDENCE, confidence)))
        self._seen[place] = self._seen[place] * _KEEP + 1
        self._right[place] = self._right[place] * _KEEP + right
