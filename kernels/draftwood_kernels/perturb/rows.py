"""Which noise belongs to which row."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class NoiseRows:
    """temperatures float32 [R], is_seeded int32 [R]: a row without a seed gets no noise, seeds int64 [R] of the same
    bits as the unsigned ones, and positions int64 [R] of the tokens that the rows are about; on the logits' device.
    """

    temperatures: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    is_seeded: torch.Tensor
