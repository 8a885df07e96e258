"""One fused attention call a segment, on keys that lie side by side.

A call on a slice of the pages took 20 to 110 µs on 2 busy cores. One padded call for the whole batch would have to copy
every prefix; it was not timed. This way a session's arithmetic is also free of its neighbours.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftwood_kernels.tree_attention.layout import AttentionLayout, Segment


def tree_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    workspace: torch.Tensor,
    layout: AttentionLayout,
) -> torch.Tensor:
    extend_pages(fresh, pages, layout)
    outputs = [
        _attend(queries[s.first : s.end], side_by_side(s, fresh, pages, workspace, layout.page_size), s.mask)
        for s in layout.segments
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def extend_pages(fresh: torch.Tensor, pages: torch.Tensor, layout: AttentionLayout) -> None:
    """Rows of segments whose pages have room behind the prefix go there."""
    if len(layout.extension_rows):
        extending = fresh if len(layout.extension_rows) == len(fresh) else fresh.index_select(0, layout.extension_rows)
        pages.index_copy_(0, layout.extension_slots, extending)


def side_by_side(
    segment: Segment, fresh: torch.Tensor, pages: torch.Tensor, workspace: torch.Tensor, page_size: int
) -> torch.Tensor:
    """Prefix and rows of a segment [P + R, C, D], a view into the pages or the workspace."""
    length = segment.prefix_len + segment.end - segment.first
    if segment.start is not None:
        return pages[segment.start : segment.start + length]
    gathered = len(segment.page_ids)
    if gathered:
        whole = pages.view(-1, page_size * pages.shape[1] * pages.shape[2])
        torch.index_select(whole, 0, segment.page_ids, out=workspace[: gathered * page_size].view(gathered, -1))
    workspace[segment.prefix_len : length] = fresh[segment.first : segment.end]
    return workspace[:length]


def _attend(queries: torch.Tensor, keys_values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """queries [R, H, D], keys_values [P + R, C, D] -> [R, H * D]."""
    keys, values = keys_values.transpose(0, 1)[None].chunk(2, dim=1)
    out = scaled_dot_product_attention(queries.transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2).reshape(len(queries), -1)
