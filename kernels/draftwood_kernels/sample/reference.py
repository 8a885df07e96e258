"""One draw on the CPU."""

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.sample.noise import gumbel, gumbel_at
from draftwood_kernels.sample.params import SamplingParams

# Tokens sorted at first when looking for the nucleus; it rarely needs more.
_FIRST_SORTED = 128


def draw(logits: NDArray[np.float32], params: SamplingParams, position: int) -> int:
    """The token at absolute position `position` from logits float32 [V]; ties go to the lower id."""
    if params.is_greedy:
        return int(logits.argmax())
    scaled = logits / np.float32(params.temperature)
    if not params.truncates:
        return int((scaled + gumbel(params.seed, position, len(logits))).argmax())
    kept = keep_set(scaled, params)
    if len(kept) == 1:
        return int(kept[0])
    return int(kept[(scaled[kept] + gumbel_at(params.seed, position, kept, len(logits))).argmax()])


def keep_set(scaled: NDArray[np.float32], params: SamplingParams) -> NDArray[np.intp]:
    """Ids that may be drawn, ascending, from logits / temperature [V].

    The top_k most probable (ties: lower id first), of these the shortest prefix whose renormalised mass reaches top_p,
    of these the ones with at least min_p times the best probability.
    """
    weights = np.exp((scaled - scaled.max()).astype(np.float64))
    limit = min(params.top_k or len(weights), len(weights))
    if params.top_k == 0 and params.top_p == 1:
        return np.flatnonzero(weights >= params.min_p)
    total = None if params.top_k else weights.sum()
    count = limit if params.top_k else min(_FIRST_SORTED, limit)
    while True:
        order = _most_probable(weights, count)
        mass = np.cumsum(weights[order])
        nucleus = int(np.searchsorted(mass, params.top_p * (mass[-1] if total is None else total))) + 1
        if nucleus <= count or count == limit:
            break
        count = min(4 * count, limit)
    kept = order if params.top_p == 1 else order[:nucleus]
    return np.sort(kept[weights[kept] >= params.min_p])


def _most_probable(weights: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """The `count` heaviest ids, heaviest first, ties by lower id."""
    if count < len(weights):
        threshold = np.partition(weights, len(weights) - count)[len(weights) - count]
        candidates = np.flatnonzero(weights >= threshold)
    else:
        candidates = np.arange(len(weights))
    return candidates[np.argsort(-weights[candidates], kind="stable")][:count]
