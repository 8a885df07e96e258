"""SiLU of the gate times the up projection, from one fused row. One dispatch point."""

import torch

from draftwood_kernels.silu_and_mul import reference


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 * I], gate first -> [rows, I]."""
    if gate_up.is_cuda:
        from draftwood_kernels.silu_and_mul import kernel  # noqa: PLC0415

        return kernel.silu_and_mul(gate_up)
    return reference.silu_and_mul(gate_up)
