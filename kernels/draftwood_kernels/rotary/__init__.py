"""Rotary position embedding: tables made once, heads rotated by the rows of their positions. One dispatch point.

Shapes: N rows, H heads, D head size. Two layouts of a head: *halves* (element i pairs with i + D / 2: what checkpoints
mean) and *pairs* (2i pairs with 2i + 1: one complex product rotates a row; `halves_to_pairs` reorders weights).
"""

import torch

from draftwood_kernels.rotary import reference
from draftwood_kernels.rotary.frequencies import RopeScaling, rope_frequencies

__all__ = ["RopeScaling", "RotaryTable", "halves_to_pairs", "rotate_pairs"]


class RotaryTable:
    """cos and sin of every position below `context_limit`, scaled by the attention factor."""

    def __init__(
        self, rope: RopeScaling, head_dim: int, context_limit: int, device: torch.device | None = None
    ) -> None:
        """Computed on the CPU, whose cosines are the same everywhere, and kept on `device`."""
        frequencies, factor = rope_frequencies(rope, head_dim)
        angles = torch.arange(context_limit, dtype=torch.float32)[:, None] * frequencies
        self._cos, self._sin = (angles.cos() * factor).to(device), (angles.sin() * factor).to(device)
        self._phases = torch.complex(self._cos, self._sin)

    @property
    def phase_table(self) -> torch.Tensor:
        """complex64 [context_limit, D / 2], for kernels that know positions on the device only."""
        return self._phases

    def rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """heads [N, H, D] in halves, positions int64 [N] -> a new tensor [N, H, D] in halves."""
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        return reference.rotate_halves(heads, cos[:, None], sin[:, None])

    def phases(self, positions: torch.Tensor) -> torch.Tensor:
        """positions int64 [N] -> complex64 [N, 1, D / 2], once a step for `rotate_pairs` in all layers."""
        return self._phases.index_select(0, positions)[:, None]


def rotate_pairs(heads: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """heads [N, H, D] in pairs -> a new tensor [N, H, D] in pairs."""
    if heads.is_cuda:
        from draftwood_kernels.rotary import kernel  # noqa: PLC0415

        return kernel.rotate_pairs(heads, phases)
    return reference.rotate_pairs(heads, phases)


def halves_to_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of heads [H * D, ...] from halves to pairs: dot products between so ordered heads stay what they were."""
    halves = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)
