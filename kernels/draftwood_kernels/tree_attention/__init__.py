"""Attention of token trees on top of paged prefixes. One dispatch point: the kind of layout says where a step runs.

Shapes: N rows of the step, R rows of a segment, P its prefix length, H query heads, G KV heads, C = 2 * G (keys, then
values), D head size, S slots (pages * page size). A row sees its segment's prefix, its ancestors and itself.
"""

import torch

from draftwood_kernels.tree_attention import reference
from draftwood_kernels.tree_attention.layout import AttentionLayout, build_layout
from draftwood_kernels.tree_attention.paged_layout import PagedLayout, build_paged_layout

__all__ = ["AttentionLayout", "Layout", "PagedLayout", "build_layout", "build_paged_layout", "tree_attention"]

Layout = AttentionLayout | PagedLayout


def tree_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    workspace: torch.Tensor | None,
    layout: Layout,
    *,
    row_invariant: bool = False,
) -> torch.Tensor:
    """queries [N, H, D], fresh [N, C, D] of the step's rows, pages [S, C, D] of one layer -> a new [N, H * D].

    With an AttentionLayout torch computes, and workspace [>= layout.workspace_rows, C, D] is scribbled on. So are slots
    behind the prefix of segments that `build_layout` was told to extend in place; those belong to the segment's own
    session and hold nothing committed. With a PagedLayout the Triton kernels do, and need no workspace.
    row_invariant, theirs alone: a row's bits depend on its position, its path and its prefix, and on nothing else, at
    the price of a block of keys a row.
    """
    if isinstance(layout, PagedLayout):
        from draftwood_kernels.invariant_tree_attention.kernel import invariant_tree_attention  # noqa: PLC0415
        from draftwood_kernels.tree_attention.kernel import tree_attention_triton  # noqa: PLC0415

        run = invariant_tree_attention if row_invariant else tree_attention_triton
        return run(queries.contiguous(), fresh, pages, layout).flatten(1)
    if row_invariant or workspace is None:
        raise ValueError("layout: an AttentionLayout needs a workspace and has no row-invariant mode")
    return reference.tree_attention(queries, fresh, pages, workspace, layout)
