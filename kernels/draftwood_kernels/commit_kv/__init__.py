"""Accepted rows of a step's scratch into the pages, all layers at once. One dispatch point.

Shapes: L layers, R scratch rows, S slots (pages * page size), C key and value heads together, D head size.
"""

import torch

from draftwood_kernels.commit_kv import reference


def commit_kv(
    scratch: torch.Tensor,
    pages: torch.Tensor,
    rows: torch.Tensor,
    slots: torch.Tensor,
    count: torch.Tensor | None = None,
) -> None:
    """pages[:, slots] = scratch[:, rows]: scratch [L, R, C, D], pages [L, S, C, D], rows and slots int64 [k].

    Slots must be distinct, but for those that nobody reads or that get the same row; pages change in place. Of rows and
    slots only the first `count` (int32 [1], on the tensors' device, so that nobody waits for it) are meant; without it,
    all.
    """
    if pages.is_cuda:
        from draftwood_kernels.commit_kv import kernel  # noqa: PLC0415

        kernel.commit_kv(scratch, pages, rows, slots, count)
        return
    if count is not None:
        rows, slots = rows[: int(count)], slots[: int(count)]
    reference.commit_kv(scratch, pages, rows, slots)
