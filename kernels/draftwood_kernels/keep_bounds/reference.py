"""Bounds by a stable sort of all weights."""

import torch

from draftwood_kernels.keep_bounds.bounds import KeepBounds


def keep_bounds(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> KeepBounds:
    wide = logits.float()
    scaled = wide / torch.where(temperature > 0, temperature, 1.0)[:, None]
    # Subtracted in float32, as the reference does: what ties there ties here.
    weights = (scaled - scaled.amax(dim=1, keepdim=True)).double().exp()
    ranked, order = weights.sort(dim=1, descending=True, stable=True)
    last = order.gather(1, _kept(weights, ranked, top_k, top_p, min_p)[:, None] - 1)
    weight = weights.gather(1, last)
    return KeepBounds(
        sure=wide.masked_fill(weights <= weight, torch.inf).amin(dim=1),
        tied=wide.masked_fill(weights < weight, torch.inf).amin(dim=1),
        last=last[:, 0].int(),
    )


def _kept(
    weights: torch.Tensor, ranked: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """How many of the most probable tokens stay, int64 [R]."""
    limit = torch.where(top_k > 0, top_k, ranked.shape[1]).clamp(max=ranked.shape[1])
    mass = ranked.cumsum(dim=1)
    total = torch.where(top_k > 0, mass.gather(1, limit[:, None] - 1)[:, 0], weights.sum(dim=1))
    nucleus = torch.searchsorted(mass, (top_p * total)[:, None])[:, 0] + 1
    count = torch.where(top_p < 1, torch.minimum(nucleus, limit), limit)
    return torch.minimum(count, (ranked >= min_p[:, None]).sum(dim=1))
