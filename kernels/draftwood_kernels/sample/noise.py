"""Gumbel noise keyed by seed and position; drafter and verifier draw the same numbers."""

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.sample.philox import philox_words, philox_words_at

# Below this vocabulary all words come faster from NumPy's C loop than some of them from array arithmetic.
_ALL_WORDS_VOCAB = 16384


def gumbel(seed: int, position: int, count: int, first: int = 0) -> NDArray[np.float32]:
    """Noise of tokens first … first + count - 1 at absolute position `position`; first is a multiple of 4."""
    return _gumbel(philox_words(seed, position, count, first))


def gumbel_at(seed: int, position: int, ids: NDArray[np.integer], vocab_size: int) -> NDArray[np.float32]:
    """gumbel(seed, position, vocab_size)[ids], drawing no more than needed where that pays."""
    if vocab_size <= _ALL_WORDS_VOCAB or len(ids) > vocab_size // 16:
        return _gumbel(philox_words(seed, position, vocab_size)[ids])
    return _gumbel(philox_words_at(seed, position, ids))


def _gumbel(words: NDArray[np.uint64]) -> NDArray[np.float32]:
    # 53 bits in the middle of their cell: never 0 or 1, so both logarithms are finite.
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: NDArray[np.float32] = (-np.log(-np.log(uniform))).astype(np.float32)
    return noise
