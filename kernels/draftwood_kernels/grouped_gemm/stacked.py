"""The linears of all groups as one weight, for a launch whose groups the device alone knows.

Shapes: M rows sorted by group, X groups, I inputs, O outputs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.quantized_linear import QuantizedLinear


class StackedLinear:
    """rows [M, I], offsets int32 [X + 1] on their device -> [M, O]: `GroupedLinear` without a wait for the host.

    Rows behind the last offset belong to nobody: their outputs are whatever the memory held.
    """

    def __init__(self, linears: Iterable[PackedLinear | QuantizedLinear], groups: int) -> None:
        """`linears`: one a group, drawn one at a time and copied into place, so that few are in memory twice.

        Raises ValueError for linears that are not stored alike, or that are packed for a CPU.
        """
        stack = None
        for index, linear in enumerate(linears):
            one = _stored(linear)
            if stack is None:
                stack = one.map(lambda tensor: tensor.new_empty(groups, *tensor.shape))
            stack.put(index, one)
        assert stack is not None, "no linears"
        self._stack = stack

    def __call__(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        from draftwood_kernels.grouped_gemm import kernel  # noqa: PLC0415

        stack = self._stack
        if stack.scales is None:
            return kernel.grouped_gemm(rows, stack.weight, offsets, stack.bias)
        return kernel.grouped_quantized_gemm(rows, stack.weight, stack.scales, stack.group, offsets, stack.bias)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """What a linear keeps, or all of them: with scales, the weight is codes in groups of `group` inputs."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    scales: torch.Tensor | None = None
    group: int = 0

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "_Stored":
        bias, scales = (None if tensor is None else change(tensor) for tensor in (self.bias, self.scales))
        return _Stored(weight=change(self.weight), bias=bias, scales=scales, group=self.group)

    def put(self, index: int, one: "_Stored") -> None:
        """One linear's into a stack."""
        if self.map(lambda tensor: tensor[0])._form() != one._form():
            raise ValueError(f"linear {index}: is not stored like those before it, which one launch needs")
        for whole, part in ((self.weight, one.weight), (self.bias, one.bias), (self.scales, one.scales)):
            if whole is not None and part is not None:
                whole[index] = part

    def _form(self) -> tuple[object, ...]:
        tensors = (self.weight, self.bias, self.scales)
        return self.group, *(None if tensor is None else (tensor.dtype, tensor.shape) for tensor in tensors)


def _stored(linear: PackedLinear | QuantizedLinear) -> _Stored:
    if isinstance(linear, QuantizedLinear):
        return _Stored(weight=linear.codes, bias=linear.bias, scales=linear.scales, group=linear.group)
    if linear.weight is None:
        raise ValueError("weight: is packed for a CPU, where linears run one by one: use GroupedLinear")
    return _Stored(weight=linear.weight, bias=linear.bias)
