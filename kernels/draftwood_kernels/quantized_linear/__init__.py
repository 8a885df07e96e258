"""A linear whose weight stays in memory as small codes with scales. One dispatch point.

Shapes: N rows, I inputs, O outputs. weight[o, i] = code[o, i] * scales[o, i // group], scales float32
[O, ceil(I / group)]; codes float8_e4m3fn [O, I], or int32 [O, I / 8]: eight codes of 4 bits a word, lowest bits first,
each plus 8.
"""

import torch

from draftwood_kernels.quantized_linear import reference
from draftwood_kernels.quantized_linear.reference import dequantize

__all__ = ["QuantizedLinear", "dequantize", "quantized_linear"]


def quantized_linear(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """x [N, I] -> x @ weight.T, a new tensor [N, O] of x's type."""
    if x.is_cuda:
        from draftwood_kernels.quantized_linear import kernel  # noqa: PLC0415

        return kernel.quantized_linear(x, codes, scales, group)
    return reference.quantized_linear(x, codes, scales, group)


class QuantizedLinear:
    """x [N, I] -> x @ weight.T + bias [O] or none, a new tensor [N, O]."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, group: int, bias: torch.Tensor | None = None) -> None:
        self.codes, self.scales, self.group, self.bias = codes.contiguous(), scales.contiguous(), group, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = quantized_linear(x, self.codes, self.scales, self.group)
        return out if self.bias is None else out.add_(self.bias)
