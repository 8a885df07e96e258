"""Attention of draft blocks on top of paged contexts. One dispatch point.

Shapes: S sessions, B rows of a block, N = S * B, W pages of a table, H query heads, G KV heads, C = 2 * G (keys, then
values), D head size, T slots (pages * page size).
"""

import torch

from draftwood_kernels.block_attention import reference
from draftwood_kernels.block_attention.layout import BlockLayout, check_heads

__all__ = ["BlockLayout", "block_attention", "check_heads"]


def block_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    context: torch.Tensor,
    layout: BlockLayout,
    *,
    is_causal: bool,
    window: int | None,
) -> torch.Tensor:
    """queries [N, H, D], fresh [N, C, D] of the blocks, context [T, C, D] of one layer -> a new [N, H * D].

    Row r of a block stands at position length + r. It sees the context and the whole block, or the block up to itself
    if `is_causal`; with a window, of both only what is less than `window` positions away. Slots of a session may lie
    apart in `context`, a slot's numbers may not.
    """
    if queries.is_cuda:
        from draftwood_kernels.block_attention import kernel  # noqa: PLC0415

        return kernel.block_attention(queries, fresh, context, layout, is_causal=is_causal, window=window)
    return reference.block_attention(queries, fresh, context, layout, is_causal=is_causal, window=window)
