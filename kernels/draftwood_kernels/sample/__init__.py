"""Keyed sampling: the token at a position is a pure function of its logits, the seed and the position (DESIGN 3).

Shapes: V vocabulary. One dispatch point; a Triton kernel that draws the same integers joins here later.
"""

from draftwood_kernels.sample.noise import gumbel, gumbel_at
from draftwood_kernels.sample.params import SamplingParams
from draftwood_kernels.sample.philox import philox_words, philox_words_at
from draftwood_kernels.sample.reference import draw, keep_set

__all__ = ["SamplingParams", "draw", "gumbel", "gumbel_at", "keep_set", "philox_words", "philox_words_at"]
