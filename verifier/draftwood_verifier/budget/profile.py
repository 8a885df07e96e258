"""How many tokens n nodes of a batch have been worth lately, before the next trees are there.

The allocator takes the best nodes of all trees together: of some trees many, of others none. So what counts is how many
nodes of a tree have had which chance, and not what the best n of each were worth: with eight trees and two nodes for
each, the former was 1.15 times as many tokens a round (embedded pair).
"""

from collections import deque
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from draftwood_verifier.budget.calibration import Calibration
from draftwood_wire.tree import TokenTree

# Chances are counted in classes of this many, of the same width.
_CLASSES = 64
# What a round takes over, whether its trees were seen or not: a batch's trees of one moment are alike, those of the
# first tokens of a text are not like later ones, and after a while without drafts the old ones say little.
_RATE = 0.06
# Trees of each kind that are kept, to be scored again when more is known: how many of a round, and for how many rounds.
_KEPT, _KEPT_A_ROUND, _KEPT_ROUNDS = 64, 8, 32
# Before the first tree: two in three guesses right, one after the other.
_PRIOR_CHANCE, _PRIOR_NODES = 0.67, 64


# Trees and the rounds in which they came.
_Kept = deque[tuple[int, TokenTree]]


class Profile:
    """Nodes of a mean tree by their chance, for greedy and for sampled sequences."""

    def __init__(self) -> None:
        prior = _worth([[_PRIOR_CHANCE**depth for depth in range(1, _PRIOR_NODES + 1)]])
        self._worths = np.stack([prior, prior])
        self._counts = [0, 0]
        self._due = [0.0, 0.0]
        self._last_round = 0
        self._rate = _RATE
        self._kept: tuple[_Kept, _Kept] = deque(maxlen=_KEPT), deque(maxlen=_KEPT)

    def observe(
        self, trees: list[TokenTree], scores: list[list[float]], *, sampled: bool, asked: int, round_number: int
    ) -> None:
        """Some of the `asked` trees of a round have come; the chances of their nodes are `scores`."""
        if round_number != self._last_round:
            self._rate = 1 - (1 - _RATE) ** (round_number - self._last_round)
            self._last_round = round_number
        for tree in trees:
            self._due[sampled] += _KEPT_A_ROUND / asked
            if self._due[sampled] >= 1:
                self._due[sampled] = 0.0
                self._kept[sampled].append((round_number, tree))
        self._counts[sampled] += len(trees)
        # A plain mean first, so that the prior is gone after the first tree.
        rate = max(1 - (1 - self._rate / asked) ** len(trees), len(trees) / self._counts[sampled])
        self._worths[int(sampled)] += rate * (_worth(scores) - self._worths[int(sampled)])

    def score_again(self, calibration: Calibration) -> None:
        """The latest trees by what is known now: they came before it was known what would become of them."""
        for sampled, kept in enumerate(self._kept):
            while kept and kept[0][0] < self._last_round - _KEPT_ROUNDS:
                kept.popleft()
            if kept:
                self._worths[sampled] = _worth([calibration.scores(tree, sampled=bool(sampled)) for _, tree in kept])

    def tokens(self, nodes: NDArray[np.float64], sampled_share: float) -> NDArray[np.float64]:
        """Accepted nodes that a sequence can expect where the best `nodes` [E] a sequence are looked at."""
        worth = self._worths[0] * (1 - sampled_share) + self._worths[1] * sampled_share
        numbers, gains = np.concatenate([np.zeros((2, 1)), worth.cumsum(axis=1)], axis=1)
        accepted: NDArray[np.float64] = np.interp(nodes, numbers, gains)
        return accepted


def _worth(scores: list[list[float]]) -> NDArray[np.float64]:
    """[2, _CLASSES] of a mean tree, the best class first: nodes of each class, and the sum of their chances."""
    chances = np.array(list(chain.from_iterable(scores)))
    classes = np.minimum((1 - chances) * _CLASSES, _CLASSES - 1).astype(np.intp)
    sums = np.stack([np.bincount(classes, minlength=_CLASSES), np.bincount(classes, chances, _CLASSES)])
    return sums / len(scores)
