"""What the drafter's confidence in a node is worth, learned from the tokens that were committed.

A node's chance given its parent is the draft's own conditional probability, corrected by what became of nodes like it:
same temperature class, parent on the spine or not (the marginals of a block are conditioned on its argmax path), depth
and rank among its siblings, and similar confidence. Committed tokens do not depend on any draft, so trees that nobody
verified teach as much as others.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from draftwood_wire.tree import TokenTree

_DEPTHS, _RANKS = 8, 4
# Upper ends of the classes of confidence.
_CONFIDENCE = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
# Nodes that a class must have seen to weigh as much as the coarser estimate behind it.
_TRUST = 8.0
# What a class keeps of its past when it sees another node: half of what counts is the last 1,400 nodes.
_KEEP = 0.9995


@dataclass(slots=True)
class _Counts:
    """Nodes of one depth and rank: what the draft hoped for, and what came; then by class of confidence."""

    hoped: float = 0.0
    came: float = 0.0
    seen: list[float] = field(default_factory=lambda: [0.0] * (len(_CONFIDENCE) + 1))
    right: list[float] = field(default_factory=lambda: [0.0] * (len(_CONFIDENCE) + 1))

    def count(self, confidence: float, right: bool) -> None:
        self.hoped = self.hoped * _KEEP + confidence
        self.came = self.came * _KEEP + right
        sure = bisect_left(_CONFIDENCE, confidence)
        self.seen[sure] = self.seen[sure] * _KEEP + 1
        self.right[sure] = self.right[sure] * _KEEP + right


class _Places(dict[tuple[bool, int, int], _Counts]):
    """By (parent on the spine, depth, rank); those far down or far back share."""

    def __missing__(self, place: tuple[bool, int, int]) -> _Counts:
        on_spine, depth, rank = place
        shared = on_spine, min(depth, _DEPTHS), min(rank, _RANKS - 1)
        counts = self[place] = _Counts() if shared == place else self[shared]
        return counts


class Calibration:
    """Chances of nodes, for greedy and for sampled requests."""

    def __init__(self) -> None:
        self._places = _Places(), _Places()
        self._all = _Counts(), _Counts()

    def scores(self, tree: TokenTree, *, sampled: bool) -> list[float]:
        """The chance of every node to be accepted, never above its parent's or an earlier sibling's: [nodes].

        So the nodes that are looked at are the first of their siblings, which rejection sampling rests on.
        """
        shape, places, everything = tree.shape, self._places[sampled], self._all[sampled]
        # Came over hoped of all nodes, which stands for those of a place that was never seen.
        usual = _TRUST * (everything.came + _TRUST) / (everything.hoped + _TRUST)
        scores = [1.0]
        least = [1.0] * (1 + len(tree))  # of the children of each node so far
        for parent, place, confidence in zip(shape.parents, shape.places, shape.confidence, strict=True):
            counts = places[place]
            # The draft's word, scaled by how often such nodes were right, bent by how often those as sure as it were.
            coarse = confidence * (counts.came + usual) / (counts.hoped + _TRUST)
            sure = bisect_left(_CONFIDENCE, confidence)
            chance = (counts.right[sure] + _TRUST * (coarse if coarse < 1.0 else 1.0)) / (counts.seen[sure] + _TRUST)
            score = scores[parent] * chance
            if score < least[parent]:
                least[parent] = score
            scores.append(least[parent])
        return scores[1:]

    def observe(self, tree: TokenTree, tokens: list[int], *, sampled: bool) -> None:
        """The tokens that came after the tree's root, as far as they are known."""
        shape, children, token_ids = tree.shape, tree.children, tree.token_ids.tolist()
        places, everything = self._places[sampled], self._all[sampled]
        node = 0
        for token in tokens:
            found = 0
            for child in children[node]:
                entry = child - 1
                right = token_ids[entry] == token
                found = child if right else found
                places[shape.places[entry]].count(shape.confidence[entry], right)
                everything.count(shape.confidence[entry], right)
            if not found:
                return
            node = found
