"""Draft logits perturbed with the noise that the verifier will draw with, on the device. One dispatch point.

What `build_tree.perturb` does on the host for wishes, for rows whose seeds and positions the device has.
Shapes: R rows, V vocabulary.
"""

import torch

from draftwood_kernels.perturb import reference
from draftwood_kernels.perturb.rows import NoiseRows

__all__ = ["NoiseRows", "perturb_rows"]


def perturb_rows(logits: torch.Tensor, rows: NoiseRows) -> torch.Tensor:
    """logits [R, V] -> a new float32 [R, V]: logits / temperature + noise; where the temperature is 0, the logits."""
    if logits.is_cuda:
        from draftwood_kernels.perturb import kernel  # noqa: PLC0415

        return kernel.perturb_rows(logits, rows)
    return reference.perturb_rows(logits, rows)
