"""Tree attention in which each head may look away, and rows may see only what is near. One dispatch point.

A sink is a logit of a head that takes part in its softmax and has no value. With a window of W positions, a row at
position p sees positions p - W + 1 to p.

Shapes: as in `tree_attention`.
"""

import torch

from draftwood_kernels.sink_attention import reference
from draftwood_kernels.tree_attention import AttentionLayout

__all__ = ["sink_attention"]


def sink_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    workspace: torch.Tensor,
    layout: AttentionLayout,
    *,
    sinks: torch.Tensor,
    window: int | None,
) -> torch.Tensor:
    """`tree_attention` with sinks float [H], and a window unless it is none -> a new [N, H * D]."""
    return reference.sink_attention(queries, fresh, pages, workspace, layout, sinks=sinks, window=window)
