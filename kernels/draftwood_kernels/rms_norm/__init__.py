"""RMSNorm, alone and behind a residual addition. One dispatch point."""

import torch

from draftwood_kernels.rms_norm import reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """x [..., E] -> a new tensor [..., E]: x / sqrt(mean(x²) + eps) * weight; weight [E] or any that broadcasts."""
    if x.is_cuda:
        from draftwood_kernels.rms_norm import kernel  # noqa: PLC0415

        return kernel.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), both new; a kernel makes both in one pass."""
    if x.is_cuda:
        from draftwood_kernels.rms_norm import kernel  # noqa: PLC0415

        return kernel.add_rms_norm(x, residual, weight, eps)
    return reference.add_rms_norm(x, residual, weight, eps)
