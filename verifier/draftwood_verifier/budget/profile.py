"""How many tokens a tree of n nodes has been worth lately, before the next one is there."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from draftwood_verifier.budget.calibration import Calibration
from draftwood_wire.tree import TokenTree

_NODES = 64
# What a round takes over, whether its trees were seen or not: a batch's trees of one moment are alike, those of the
# first tokens of a text are not like later ones, and after a while without drafts the old ones say little.
_RATE = 0.06
# Trees of each kind that are kept, to be scored again when more is known: how many of a round, and for how many rounds.
_KEPT, _KEPT_A_ROUND, _KEPT_ROUNDS = 64, 8, 32
# Before the first tree: two in three guesses right, one after the other.
_PRIOR_CHANCE = 0.67


# Trees and the rounds in which they came.
_Kept = deque[tuple[int, TokenTree]]


class Profile:
    """Mean of the sums of the n best scores of a tree, for greedy and for sampled sequences."""

    def __init__(self) -> None:
        prior = np.concatenate([[0.0], np.cumsum(_PRIOR_CHANCE ** np.arange(1, _NODES + 1))])
        self._curves = np.stack([prior, prior])
        self._counts = [0, 0]
        self._due = [0.0, 0.0]
        self._numbers = np.arange(_NODES + 1)
        self._last_round = 0
        self._rate = _RATE
        self._kept: tuple[_Kept, _Kept] = deque(maxlen=_KEPT), deque(maxlen=_KEPT)

    def observe(
        self, tree: TokenTree, calibration: Calibration, *, sampled: bool, asked: int, round_number: int
    ) -> None:
        """One of `asked` trees of a round has come."""
        if round_number != self._last_round:
            self._rate = 1 - (1 - _RATE) ** (round_number - self._last_round)
            self._last_round = round_number
        self._due[sampled] += _KEPT_A_ROUND / asked
        if self._due[sampled] >= 1:
            self._due[sampled] = 0.0
            self._kept[sampled].append((round_number, tree))
        self._counts[sampled] += 1
        # A plain mean first, so that the prior is gone after the first tree.
        rate = max(self._rate / asked, 1 / self._counts[sampled])
        worth = _worth(calibration.scores(tree, sampled=sampled))
        self._curves[int(sampled)] += rate * (worth - self._curves[int(sampled)])

    def score_again(self, calibration: Calibration) -> None:
        """The latest trees by what is known now: they came before it was known what would become of them."""
        for sampled, kept in enumerate(self._kept):
            while kept and kept[0][0] < self._last_round - _KEPT_ROUNDS:
                kept.popleft()
            if kept:
                worths = [_worth(calibration.scores(tree, sampled=bool(sampled))) for _, tree in kept]
                self._curves[sampled] = np.mean(worths, axis=0)

    def tokens(self, nodes: NDArray[np.float64], sampled_share: float) -> NDArray[np.float64]:
        """Accepted nodes that a sequence can expect of `nodes` [E] looked at."""
        curve = self._curves[0] * (1 - sampled_share) + self._curves[1] * sampled_share
        accepted: NDArray[np.float64] = np.interp(nodes, self._numbers, curve)
        return accepted


def _worth(scores: list[float]) -> NDArray[np.float64]:
    """Sums of the 0.._NODES best scores."""
    best = np.zeros(_NODES + 1)
    count = min(len(scores), _NODES)
    best[1 : count + 1] = sorted(scores, reverse=True)[:count]
    return best.cumsum()
