import math
from functools import lru_cache

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """By the vector norm, which is sqrt(E) times the root of the mean square: a third of the time of torch's composite
    rms_norm at a few rows, where calls cost most."""
    size = x.shape[-1]
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    shortened = x / torch.hypot(length, _root(eps * size, x.device))
    return shortened.mul_(math.sqrt(size)) if weight is None else shortened.mul_(_lengthening(weight))


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


@lru_cache(maxsize=16)
def _root(square: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(square**0.5, device=device)


@lru_cache(maxsize=512)
def _lengthening(weight: torch.Tensor) -> torch.Tensor:
    """weight * sqrt(E), once for each weight, by identity: weights don't change while a model serves."""
    return weight * math.sqrt(weight.shape[-1])
