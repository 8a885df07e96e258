"""Tree attention in which each head may look away, and rows may see only what is near. One dispatch point, as there.

A sink is a logit of a head that takes part in its softmax and has no value. With a window of W positions, a row at
position p sees positions p - W + 1 to p.

Shapes: as in `tree_attention`.
"""

import torch

from draftwood_kernels.sink_attention import reference
from draftwood_kernels.tree_attention import Layout, PagedLayout

__all__ = ["sink_attention"]


def sink_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    workspace: torch.Tensor | None,
    layout: Layout,
    *,
    sinks: torch.Tensor,
    window: int | None,
) -> torch.Tensor:
    """`tree_attention` with sinks float [H], and a window unless it is none -> a new [N, H * D]."""
    if isinstance(layout, PagedLayout):
        from draftwood_kernels.sink_attention.kernel import sink_attention_triton  # noqa: PLC0415

        return sink_attention_triton(queries.contiguous(), fresh, pages, layout, sinks=sinks, window=window).flatten(1)
    if workspace is None:
        raise ValueError("layout: an AttentionLayout needs a workspace")
    return reference.sink_attention(queries, fresh, pages, workspace, layout, sinks=sinks, window=window)
