"""The weighted sum of what a row's experts made of it. One dispatch point.

Shapes: N rows, K experts a row, M = N * K pairs of a row and one of its experts (numbered row by row), E hidden.
"""

import torch

from draftwood_kernels.combine_experts import reference


def combine_experts(
    outputs: torch.Tensor, weights: torch.Tensor, places: torch.Tensor, end: torch.Tensor
) -> torch.Tensor:
    """outputs [M, E], weights float32 [N, K], places int64 [M], end int32 [1] -> a new [N, E] of outputs' type.

    Pair p's output is at places[p]. What lies from `end` on belongs to nobody: it is not added, whatever it holds. A
    row is summed in float32 in the order of its choices and rounded once, so its bits depend on no other row.
    """
    if outputs.is_cuda:
        from draftwood_kernels.combine_experts import kernel  # noqa: PLC0415

        return kernel.combine_experts(outputs, weights, places, end)
    return reference.combine_experts(outputs, weights, places, end)
