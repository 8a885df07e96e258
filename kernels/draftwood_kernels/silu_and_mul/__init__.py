"""SiLU of the gate times the up projection, from one fused row. One dispatch point."""

import torch

from draftwood_kernels.silu_and_mul import reference


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 * I], gate first -> [rows, I]."""
    return reference.silu_and_mul(gate_up)
