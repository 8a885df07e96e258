"""Anchors, block inputs and weighted labels of one training batch.

Shapes: S sequences, T tokens a sequence, A anchors a sequence, b block slots. Source: DFlash section 4.2: random
anchors redrawn every step, same-position labels, weights that decay along the block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """anchors int64 [S, A]; input_ids int64 [S, A * b]; labels int64 [S, A, b - 1]; weights float32 [S, A, b - 1]."""

    anchors: Tensor
    input_ids: Tensor
    labels: Tensor
    weights: Tensor


def choose_anchors(lengths: Tensor, anchors: int, generator: torch.Generator) -> Tensor:
    """Positions in 1 .. length - 2, so that every anchor has context and a label: int64 [S, A], with replacement."""
    shares = torch.rand(len(lengths), anchors, generator=generator)
    return (1 + shares * (lengths[:, None] - 2)).long().sort(dim=1).values


def make_blocks(
    ids: Tensor, lengths: Tensor, anchors: Tensor, *, block: int, mask_token_id: int, decay: float
) -> Blocks:
    """Inputs and labels of the blocks at `anchors`; slots beyond a sequence's length weigh nothing.

    Slot k >= 1 is labelled with the token at its own position and weighs exp(-(k - 1) / decay).
    """
    slots = torch.arange(1, block)
    positions = anchors[..., None] + slots
    labels = ids.gather(1, positions.clamp(max=ids.shape[1] - 1).flatten(1)).view_as(positions)
    weights = (positions < lengths[:, None, None]) * torch.exp(-(slots - 1) / decay)
    masks = torch.full((*anchors.shape, block - 1), mask_token_id)
    input_ids = torch.cat([ids.gather(1, anchors)[..., None], masks], dim=2).flatten(1)
    return Blocks(anchors=anchors, input_ids=input_ids, labels=labels, weights=weights)
