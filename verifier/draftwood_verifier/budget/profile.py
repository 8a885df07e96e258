"""How many tokens a tree of n nodes has been worth lately, before the next one is there."""

import numpy as np
from numpy.typing import NDArray

_NODES = 64
_RATE = 0.03
# Before the first tree: two in three guesses right, one after the other.
_PRIOR_CHANCE = 0.67


class Profile:
    """Mean of the sums of the n best scores of a tree, for greedy and for sampled sequences."""

    def __init__(self) -> None:
        prior = np.concatenate([[0.0], np.cumsum(_PRIOR_CHANCE ** np.arange(1, _NODES + 1))])
        self._curves = np.stack([prior, prior])
        self._counts = [0, 0]

    def observe(self, scores: NDArray[np.float64], *, sampled: bool) -> None:
        """Calibrated scores [nodes] of one tree."""
        best = np.sort(scores)[::-1][:_NODES]
        curve = np.full(_NODES + 1, best.sum())
        curve[: len(best) + 1] = np.concatenate([[0.0], np.cumsum(best)])
        self._counts[sampled] += 1
        # A plain mean first, so that the prior is gone after the first tree.
        rate = max(_RATE, 1 / self._counts[sampled])
        self._curves[int(sampled)] += rate * (curve - self._curves[int(sampled)])

    def tokens(self, nodes: NDArray[np.float64], sampled_share: float) -> NDArray[np.float64]:
        """Accepted nodes that a sequence can expect of `nodes` [E] looked at."""
        curve = self._curves[0] * (1 - sampled_share) + self._curves[1] * sampled_share
        accepted: NDArray[np.float64] = np.interp(nodes, np.arange(_NODES + 1), curve)
        return accepted
