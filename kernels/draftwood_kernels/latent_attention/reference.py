"""All heads of a segment share their keys, so that scores are one product of [R * H, D] by [P + R, D]."""

import torch

from draftwood_kernels.tree_attention.layout import AttentionLayout
from draftwood_kernels.tree_attention.reference import extend_pages, side_by_side


def latent_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    workspace: torch.Tensor,
    layout: AttentionLayout,
    *,
    value_dim: int,
    scale: float,
) -> torch.Tensor:
    extend_pages(fresh, pages, layout)
    out = queries.new_empty(*queries.shape[:2], value_dim)
    for segment in layout.segments:
        rows = slice(segment.first, segment.end)
        latents = side_by_side(segment, fresh, pages, workspace, layout.page_size)[:, 0]
        out[rows] = _attend(queries[rows], latents, segment.mask, value_dim, scale)
    return out


def _attend(
    queries: torch.Tensor, latents: torch.Tensor, mask: torch.Tensor | None, value_dim: int, scale: float
) -> torch.Tensor:
    """queries [R, H, D], latents [P + R, D], mask [R, P + R] -> [R, H, V]."""
    scores = (queries.flatten(0, 1) @ latents.T).mul_(scale).view(*queries.shape[:2], -1)
    if mask is not None:
        scores += mask[:, None]
    return torch.softmax(scores, dim=-1) @ latents[:, :value_dim]
