"""Which rows of a step are context of whom."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class ContextRows:
    """All int32, on the device of the features: the host need not know yet how many tokens a session committed.

    row_offsets [S + 1] are room: of the rows from row_offsets[s] on, the first lengths[s] are meant, at the absolute
    positions starts[s], starts[s] + 1, …; more than the room is as much as the room. block_tables [S, pages] has the
    pages of those positions.
    """

    row_offsets: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor
    block_tables: torch.Tensor
    page_size: int
