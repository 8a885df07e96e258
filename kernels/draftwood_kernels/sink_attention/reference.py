import torch

from draftwood_kernels.tree_attention.layout import AttentionLayout, Segment
from draftwood_kernels.tree_attention.reference import extend_pages, side_by_side


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
    extend_pages(fresh, pages, layout)
    out = queries.new_empty(len(queries), queries.shape[1] * queries.shape[2])
    for segment in layout.segments:
        rows = slice(segment.first, segment.end)
        keys_values = side_by_side(segment, fresh, pages, workspace, layout.page_size)
        mask = segment.mask
        if window is not None and mask is None:
            keys_values = keys_values[-window:]
        elif window is not None:
            mask = _windowed(segment, window)
        out[rows] = _attend(queries[rows], keys_values, mask, sinks)
    return out


def _windowed(segment: Segment, window: int) -> torch.Tensor:
    """The mask [R, P + R] without keys that are `window` positions or more behind their row."""
    assert segment.mask is not None
    depths = (segment.mask[:, segment.prefix_len :] == 0).sum(1) - 1
    positions = torch.cat([torch.arange(segment.prefix_len), segment.prefix_len + depths])
    return segment.mask.masked_fill(positions <= positions[segment.prefix_len :, None] - window, -torch.inf)


def _attend(
    queries: torch.Tensor, keys_values: torch.Tensor, mask: torch.Tensor | None, sinks: torch.Tensor
) -> torch.Tensor:
    """queries [R, H, D], keys_values [P + R, C, D] -> [R, H * D]."""
    keys, values = keys_values.transpose(0, 1).chunk(2)
    grouped = queries.unflatten(1, (len(keys), -1)).permute(1, 2, 0, 3)
    scores = grouped @ keys[:, None].mT * queries.shape[2] ** -0.5
    if mask is not None:
        scores += mask
    sink = sinks.view(len(keys), -1, 1, 1).expand(*scores.shape[:3], 1)
    weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    return (weights @ values[:, None]).permute(2, 0, 1, 3).reshape(len(queries), -1)
