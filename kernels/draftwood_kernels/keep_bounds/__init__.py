"""What top-k, top-p and min-p leave of many rows. One dispatch point.

Shapes: R rows, V vocabulary. The set is that of `sample.keep_set`, ties included: the most probable tokens rank by
weight, then by lower id, and a prefix of them stays. So all tokens above the last one's weight stay, and of those that
share its weight the ones up to its id. Weight grows with the logit: both bounds can be told as logits.
"""

import torch

from draftwood_kernels.keep_bounds import reference
from draftwood_kernels.keep_bounds.bounds import KeepBounds

__all__ = ["KeepBounds", "keep_bounds"]


def keep_bounds(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> KeepBounds:
    """logits [R, V], temperature float32 [R], top_k int64 [R] (0: all), top_p and min_p float64 [R] -> the bounds.

    No host waits. Rows at temperature 0 get bounds as at 1; a greedy row does not read them. Sums of weights are
    float64: where a prefix of tokens reaches top_p in the last bit of its sum, the order of adding decides.
    """
    if logits.is_cuda:
        from draftwood_kernels.keep_bounds import kernel  # noqa: PLC0415

        return kernel.keep_bounds(logits, temperature, top_k, top_p, min_p)
    return reference.keep_bounds(logits, temperature, top_k, top_p, min_p)
