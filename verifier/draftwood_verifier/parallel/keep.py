"""What top-k, top-p and min-p leave of rows that are spread over the ranks, without any rank seeing a whole row.

The rule is `draftwood_kernels.sample.keep_set`'s: a prefix of the tokens ranked by weight, then by lower id. The
weight at which the prefix ends is found digit by digit: every rank tells how many of its tokens, and how much weight,
have each value of the next digit. How many messages that takes depends on the parameters and never on logits, so that
ranks whose logits differ can't lose step with each other.

A prefix ends where the one rank's does, with one reservation: masses are added up in another order. A token may fall on
the other side of top_p's cut when the mass up to it is within 1e-13 of the cut, relatively.

Shapes: R rows, v tokens of this rank, D values of a digit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.parallel.groups import Ranks

_DIGIT_BITS = 8
_LEVELS = 32 // _DIGIT_BITS
_VALUES = 1 << _DIGIT_BITS
_COUNT, _MASS = 0, 1


class WideRow:
    """This rank's part of one row; `kept` bool [v] says which of its tokens are left."""

    def __init__(self, scaled: NDArray[np.float32], best: np.float32, params: SamplingParams) -> None:
        """scaled [v] is logits / temperature, `best` the highest of all ranks."""
        # If all tokens are excluded, best and scaled are both -inf: nothing is kept.
        with np.errstate(invalid="ignore"):
            distance = best - scaled
        self.params = params
        self.weights = np.exp(-distance.astype(np.float64))
        self.kept = self.weights >= params.min_p
        # A float that is not negative orders as its bits do, and here low is heavy. What weighs as much as the best
        # ties with it; weights that underflow tie too, but such a token is never drawn.
        self.keys = np.where(self.weights == 1, np.float32(0), distance).view(np.uint32)

    def digits(self, prefix: int, level: int) -> NDArray[np.float64]:
        """[D, 2]: count and mass, for each value of the next digit, of the tokens whose digits begin with `prefix`."""
        shift = 32 - _DIGIT_BITS * (level + 1)
        chosen = slice(None) if level == 0 else np.flatnonzero(self.keys >> (shift + _DIGIT_BITS) == prefix)
        values = (self.keys[chosen] >> shift) & (_VALUES - 1)
        found = np.empty((_VALUES, 2))
        found[:, _COUNT] = np.bincount(values, minlength=_VALUES)
        found[:, _MASS] = np.bincount(values, self.weights[chosen], _VALUES)
        return found

    def end_at(self, cut: "Cut", rank: int) -> None:
        tied = np.flatnonzero(self.keys == cut.key)
        self.kept &= self.keys <= cut.key
        self.kept[tied[cut.tied[rank] :]] = False


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The end of a prefix: all keys before `key`, and of the tokens that have it the first `tied` of each rank."""

    key: int
    tied: list[int]
    mass: float  # of the prefix, all ranks together


def truncate(rows: Sequence[WideRow], ranks: Ranks) -> None:
    """Bring `kept` of every row to what its parameters say."""
    counted = [row for row in rows if row.params.top_k]
    cuts = _cut(counted, [_Search(_COUNT, float(row.params.top_k)) for row in counted], ranks)
    left = {id(row): cut.mass for row, cut in zip(counted, cuts, strict=True)}
    weighed = [row for row in rows if row.params.top_p < 1]
    _cut(weighed, [_Search(_MASS, row.params.top_p, of=left.get(id(row))) for row in weighed], ranks)


def _cut(rows: Sequence[WideRow], searches: "Sequence[_Search]", ranks: Ranks) -> list[Cut]:
    if not rows:
        return []
    for level in range(_LEVELS):
        mine = [row.digits(search.prefix, level) for row, search in zip(rows, searches, strict=True)]
        of_ranks = ranks.gather(np.stack(mine))
        for index, search in enumerate(searches):
            search.narrow(of_ranks[:, index])
    cuts = [search.cut() for search in searches]
    for row, cut in zip(rows, cuts, strict=True):
        row.end_at(cut, ranks.rank)
    return cuts


class _Search:
    """For the key at which the count or the mass of a row's heaviest tokens reaches a goal."""

    def __init__(self, measure: int, goal: float, *, of: float | None = 1.0) -> None:
        """The goal is a multiple of `of`, or of the row's whole mass."""
        self.prefix = 0
        self._measure = measure
        self._goal = goal
        self._of = of
        self._before = np.zeros(2)  # count and mass of heavier keys
        self._tied = np.zeros(0)

    def narrow(self, of_ranks: NDArray[np.float64]) -> None:
        """One digit further: of_ranks [ranks, D, 2] are everybody's `digits`."""
        sums = of_ranks.sum(axis=0)
        if self._of is None:
            self._of = float(sums[:, _MASS].sum())
        reached = self._before + sums.cumsum(axis=0)
        there = sums[:, _COUNT] > 0
        hits = np.flatnonzero(there & (reached[:, self._measure] >= self._goal * self._of))
        # None, if the goal is the whole and rounding has made the parts less.
        value = int(hits[0]) if len(hits) else int(np.flatnonzero(there)[-1])
        self._before = reached[value] - sums[value]
        self._tied = of_ranks[:, value, _COUNT]
        self.prefix = self.prefix << _DIGIT_BITS | value

    def cut(self) -> Cut:
        weight = math.exp(-float(np.uint32(self.prefix).view(np.float32)))
        left = self._needed(weight)
        mass = float(self._before[_MASS]) + left * weight
        tied: list[int] = []
        for count in self._tied.tolist():
            tied.append(min(int(count), left))
            left -= tied[-1]
        return Cut(key=self.prefix, tied=tied, mass=mass)

    def _needed(self, weight: float) -> int:
        """How many of the tokens that share the last key are within the goal."""
        assert self._of is not None, "a search that has seen no digit"
        gap, ties = self._goal * self._of - float(self._before[self._measure]), int(self._tied.sum())
        if self._measure == _MASS:
            gap = gap / weight if weight > 0 else math.inf
        return max(1, math.ceil(gap)) if gap < ties else ties
