"""A linear whose weight is laid out once for the machine it runs on. One dispatch point."""

import torch

from draftwood_kernels.linear import reference


class PackedLinear:
    """x [rows, in] -> x @ weight.T + bias, a new tensor [rows, out]. weight float [out, in], bias [out] or none."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._linear = reference.pack(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x)
