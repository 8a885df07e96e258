"""Draft keys and values of context positions, in pages shared by all sessions.

Shapes: P pages, p slots a page, L draft layers, H KV heads, D head size, S sessions, C columns.
The draft's context never depends on the block, so a row is written once, for all layers, and never moves.
Slot 0 of the extra last page stands in for padding: it stays zero, so that no session's values, however wild,
can reach another through a masked column (zero times NaN is NaN).
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.placement import CPU, Placement


class OutOfPages(Exception):
    """No free page is left; nothing was taken."""


@dataclass(kw_only=True)
class PageTable:
    """Pages of one session; position i lives in slot i % page_size of pages[i // page_size]."""

    pages: list[int] = field(default_factory=list)
    # slots[i] of every position the pages can hold, kept ready for gathers: int64 [pages * page_size].
    slots: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


class ContextCache:
    """Pages, who holds how many, and the tensor behind them.

    keys_values [(P + 1) * p, L, 2, H, D] is where the placement says and of its type.
    """

    def __init__(
        self, *, pages: int, page_size: int, layers: int, kv_heads: int, head_dim: int, placement: Placement = CPU
    ) -> None:
        self.pages_total = pages
        self.page_size = page_size
        self._free = list(range(pages - 1, -1, -1))
        self._held = 0
        self._padding_slot = pages * page_size
        self.keys_values = torch.zeros(
            (pages + 1) * page_size,
            layers,
            2,
            kv_heads,
            head_dim,
            device=placement.device,
            dtype=placement.dtype,
        )

    @property
    def pages_free(self) -> int:
        return len(self._free)

    def check_ledger(self) -> None:
        """Assert that every page is either free or held, and none is free twice."""
        assert len(self._free) + self._held == self.pages_total, (len(self._free), self._held, self.pages_total)
        assert len(set(self._free)) == len(self._free), "a page is free twice"

    def reserve(self, table: PageTable, positions: int) -> None:
        """Give `table` pages for positions 0 .. positions - 1. Raises OutOfPages and then changes nothing."""
        wanted = -(-positions // self.page_size) - len(table.pages)
        if wanted <= 0:
            return
        if wanted > len(self._free):
            raise OutOfPages(f"{wanted} pages wanted, {len(self._free)} of {self.pages_total} are free")
        taken = [self._free.pop() for _ in range(wanted)]
        self._held += wanted
        table.pages += taken
        first_slots = np.array(taken, np.int64)[:, None] * self.page_size
        table.slots = np.concatenate([table.slots, (first_slots + np.arange(self.page_size)).reshape(-1)])

    def release(self, table: PageTable) -> None:
        """Take all pages back; the table is empty afterwards."""
        self._free += reversed(table.pages)
        self._held -= len(table.pages)
        table.pages = []
        table.slots = np.zeros(0, np.int64)

    def pages_of(self, table: PageTable, positions: int) -> NDArray[np.int32]:
        """Pages of positions 0 .. positions - 1, in order: a new int32 [pages]."""
        return (table.slots[: positions : self.page_size] // self.page_size).astype(np.int32)

    def write(self, slots: NDArray[np.int64], keys_values: torch.Tensor) -> None:
        """Store rows [rows, L, 2, H, D] at slots int64 [rows]."""
        self.keys_values.index_copy_(0, torch.from_numpy(slots), keys_values)

    def gather(self, tables: list[PageTable], lengths: list[int], headroom: int) -> torch.Tensor:
        """Context of S sessions side by side: a new [S, headroom + C, L, 2, H, D] with C = max(lengths).

        The first `headroom` columns are zero, for the block's own keys; column headroom + i is position i, zero from
        the session's length on.
        """
        index = np.full((len(tables), headroom + max(lengths)), self._padding_slot, np.int64)
        for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
            index[row, headroom : headroom + length] = table.slots[:length]
        # Measured: five times as fast as indexing with the matrix.
        rows = self.keys_values.index_select(0, torch.from_numpy(index.reshape(-1)))
        return rows.view(*index.shape, *rows.shape[1:])
