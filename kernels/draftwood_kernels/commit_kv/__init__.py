"""Accepted rows of a step's scratch into the pages, all layers at once. One dispatch point.

Shapes: L layers, R scratch rows, S slots (pages * page size), C key and value heads together, D head size.
"""

import torch

from draftwood_kernels.commit_kv import reference


def commit_kv(scratch: torch.Tensor, pages: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """pages[:, slots] = scratch[:, rows]: scratch [L, R, C, D], pages [L, S, C, D], rows and slots int64 [k].

    Slots must be distinct; pages change in place.
    """
    reference.commit_kv(scratch, pages, rows, slots)
