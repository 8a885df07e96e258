"""Attention of token trees on top of paged prefixes. One dispatch point.

Shapes: N rows of the step, R rows of a segment, P its prefix length, H query heads, G KV heads, C = 2 * G (keys, then
values), D head size, S slots (pages * page size). A row sees its segment's prefix, its ancestors and itself.
"""

import torch

from draftwood_kernels.tree_attention import reference
from draftwood_kernels.tree_attention.layout import AttentionLayout, build_layout

__all__ = ["AttentionLayout", "build_layout", "tree_attention"]


def tree_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    workspace: torch.Tensor,
    layout: AttentionLayout,
) -> torch.Tensor:
    """queries [N, H, D], fresh [N, C, D] of the step's rows, pages [S, C, D] of one layer -> a new [N, H * D].

    workspace [>= layout.workspace_rows, C, D] is scribbled on. So are slots behind the prefix of segments that
    `build_layout` was told to extend in place; those belong to the segment's own session and hold nothing committed.
    """
    return reference.tree_attention(queries, fresh, pages, workspace, layout)
