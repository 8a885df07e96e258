"""Projected context features into the paged draft cache, all layers at once: keys are normed and rotated on the way.
One dispatch point.

Shapes: N rows, S sessions, T slots (pages * page size), L draft layers, G KV heads, D head size in pairs, X positions.
"""

import torch

from draftwood_kernels.append_context import reference
from draftwood_kernels.append_context.rows import ContextRows

__all__ = ["ContextRows", "append_context"]


def append_context(
    projected: torch.Tensor,
    k_norm: torch.Tensor,
    eps: float,
    phase_table: torch.Tensor,
    rows: ContextRows,
    cache: torch.Tensor,
) -> None:
    """projected [N, L, 2, G, D] (keys, values) -> the slots of cache [T, L, 2, G, D] that `rows` names, in place.

    k_norm [L, 1, D] weighs keys after their RMSNorm; phase_table complex64 [X, D / 2] of every position. Rows beyond
    their session's length, and behind the last offset, are neither read nor written. A kernel rounds once.
    """
    if projected.is_cuda:
        from draftwood_kernels.append_context import kernel  # noqa: PLC0415

        kernel.append_context(projected, k_norm, eps, phase_table, rows, cache)
        return
    reference.append_context(projected, k_norm, eps, phase_table, rows, cache)
