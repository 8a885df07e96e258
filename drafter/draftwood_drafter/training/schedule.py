"""Optimizers and learning rates shared by target and drafter training."""

import math

import torch
from torch import nn


def make_optimizers(model: nn.Module, matrix_lr: float, vector_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for hidden matrices, AdamW for embeddings and norms."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=vector_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def set_learning_rate(
    optimizers: list[torch.optim.Optimizer], peaks: tuple[float, float], step: int, steps: int
) -> None:
    for optimizer, peak in zip(optimizers, peaks, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = peak * peak_share(step, steps)


def peak_share(step: int, steps: int) -> float:
    """Linear warm-up over 4 %, flat to 60 %, then down to zero as a cosine."""
    done = (step + 1) / steps
    if done < 0.04:
        return done / 0.04
    return 1.0 if done < 0.6 else 0.5 * (1 + math.cos(math.pi * (done - 0.6) / 0.4))
