"""One linear a group of rows: the experts of a layer. `GroupedLinear` is for CPUs, `StackedLinear` for GPUs.

Shapes: M rows sorted by group, X groups, I inputs, O outputs.
"""

from collections.abc import Callable, Iterable

import torch

from draftwood_kernels.grouped_gemm.stacked import StackedLinear

__all__ = ["GroupedLinear", "Linear", "StackedLinear"]

Linear = Callable[[torch.Tensor], torch.Tensor]


class GroupedLinear:
    """rows [M, I], offsets [X + 1] -> [M, O]: rows offsets[x] … offsets[x + 1] - 1 through the linear of group x.

    A linear whose group is empty is not run, so a step costs the experts that it hits.
    """

    def __init__(self, linears: Iterable[Linear], out_features: int) -> None:
        """`linears`: one a group, drawn one at a time, so that a caller may load as it goes."""
        self._linears = list(linears)
        self._out_features = out_features

    def __call__(self, rows: torch.Tensor, offsets: list[int]) -> torch.Tensor:
        parts = [
            linear(rows[first:end])
            for linear, first, end in zip(self._linears, offsets[:-1], offsets[1:], strict=True)
            if end > first
        ]
        return torch.cat(parts) if parts else rows.new_empty(0, self._out_features)
