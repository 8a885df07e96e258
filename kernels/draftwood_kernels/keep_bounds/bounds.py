"""A kept set of tokens as three numbers a row, so that a kernel needs no list of ids. Shapes: R rows."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class KeepBounds:
    """Token v of a row stays if logit >= `sure`, or if logit >= `tied` and v <= `last`."""

    sure: torch.Tensor  # float32 [R]; infinite where no token is above the last one's weight
    tied: torch.Tensor  # float32 [R]
    last: torch.Tensor  # int32 [R]
