"""A linear whose weight is laid out once for the machine it runs on. One dispatch point."""

from functools import partial

import torch

from draftwood_kernels.linear import reference


class PackedLinear:
    """x [rows, in] -> x @ weight.T + bias, a new tensor [rows, out]. weight float [out, in], bias [out] or none.

    row_invariant: a row's bits depend on nothing else in x. On a GPU that is a kernel of fixed tiles in the place of
    the library's, which chooses by the number of rows; on a CPU float32 is so anyway, and other types are refused.

    What `weight` and `bias` hold is the layout as it was given; no weight once a CPU's own layout has replaced it.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, row_invariant: bool = False) -> None:
        self.out_features, self.in_features = weight.shape
        weight = weight.detach().contiguous()
        self.weight = None if reference.packs(weight) else weight
        self.bias = bias
        if row_invariant and weight.is_cuda:
            from draftwood_kernels.linear.kernel import row_invariant_linear  # noqa: PLC0415

            self._linear: reference.Linear = partial(row_invariant_linear, weight=weight, bias=bias)
            return
        if row_invariant and not reference.packs(weight):
            raise ValueError(f"weight: {weight.dtype} on {weight.device} has no row-invariant linear")
        self._linear = reference.pack(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x)
