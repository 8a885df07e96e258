"""Linears that torch does not have: row-invariant ones, and ones whose weight stays codes."""

import torch
from torch.nn import functional

from draftwood_kernels.bench.case import Case, size_bytes
from draftwood_kernels.bench.quantized_weights import QuantizedWeight, quantized_weights
from draftwood_kernels.bench.shapes import ModelShape, Setting, StepShape
from draftwood_kernels.linear.kernel import row_invariant_linear
from draftwood_kernels.quantized_linear.kernel import quantized_linear


def linear_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    rows = step.batch * (step.nodes + 1)

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=setting.device, dtype=setting.dtype)

    x, weight = randn(rows, model.hidden), randn(model.hidden, model.hidden)
    plain = Case(
        op="linear",
        name=f"row-invariant linear {_sizes(x, weight)}",
        run=lambda: row_invariant_linear(x, weight, None),
        reference=lambda: functional.linear(x, weight),
        bytes_moved=2 * size_bytes(x) + size_bytes(weight),
        operations=2 * rows * model.hidden**2,
        rivals={"torch": lambda: functional.linear(x, weight)},
    )
    quantized = quantized_weights(model.hidden, model.hidden, device=setting.device)
    return [plain, *(_quantized_case(x, weight) for weight in quantized)]


def _quantized_case(x: torch.Tensor, weight: QuantizedWeight) -> Case:
    """Beside the linear of a weight that was unpacked beforehand, which is what codes have to be faster than."""
    unpacked = weight.unpacked(x.dtype)
    return Case(
        op="quantized_linear",
        name=f"quantized_linear {weight.kind} {_sizes(x, unpacked)}",
        run=lambda: quantized_linear(x, weight.codes, weight.scales, weight.group),
        reference=lambda: functional.linear(x, unpacked),
        bytes_moved=2 * size_bytes(x) + weight.size_bytes,
        operations=2 * x.shape[0] * unpacked.numel(),
        rivals={"torch, unpacked": lambda: functional.linear(x, unpacked)},
    )


def _sizes(x: torch.Tensor, weight: torch.Tensor) -> str:
    return f"{[*x.shape]} x {[*weight.shape]}"
