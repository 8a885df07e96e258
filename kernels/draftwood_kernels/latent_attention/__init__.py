"""Attention of token trees over a cache of latent rows, which all heads share. One dispatch point: the kind of layout.

A token leaves one vector: key for every head, and value with its first `value_dim` numbers (multi-head latent attention
with the up-projections absorbed into queries and outputs).

Shapes: N rows of the step, H query heads, D numbers of a latent, V = value_dim, S slots (pages * page size). A row sees
its segment's prefix, its ancestors and itself.
"""

import torch

from draftwood_kernels.latent_attention import reference
from draftwood_kernels.tree_attention import Layout, PagedLayout

__all__ = ["latent_attention"]


def latent_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    workspace: torch.Tensor | None,
    layout: Layout,
    *,
    value_dim: int,
    scale: float,
) -> torch.Tensor:
    """queries [N, H, D], fresh [N, 1, D] of the step's rows, pages [S, 1, D] of one layer -> a new [N, H, V].

    `scale` multiplies scores. With an AttentionLayout torch computes, and workspace [>= layout.workspace_rows, 1, D]
    and slots that segments extend into are scribbled on, as by `tree_attention`. With a PagedLayout the Triton kernels
    do, and need no workspace.
    """
    if isinstance(layout, PagedLayout):
        from draftwood_kernels.latent_attention.kernel import latent_attention_triton  # noqa: PLC0415

        return latent_attention_triton(queries.contiguous(), fresh, pages, layout, value_dim=value_dim, scale=scale)
    if workspace is None:
        raise ValueError("layout: an AttentionLayout needs a workspace")
    return reference.latent_attention(queries, fresh, pages, workspace, layout, value_dim=value_dim, scale=scale)
