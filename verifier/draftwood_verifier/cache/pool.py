"""The memory behind the page ids: keys and values of all layers, and the rows of the step that runs.

Shapes: L layers, S slots (pages * page size); a token leaves C heads of D numbers in a layer: keys and values of its KV
heads, or one latent row.
"""

import torch

from draftwood_kernels.placement import CPU, Placement


class KVPool:
    """pages [L, S, C, D]; page p is slots p * page_size …. Which page is whose, the allocator knows."""

    def __init__(
        self, *, layers: int, pages: int, page_size: int, row: tuple[int, int], placement: Placement = CPU
    ) -> None:
        """row: (C, D)."""
        self.page_size = page_size
        self.placement = placement
        # Zeros, so that a slot nobody has written is finite; the system backs them when they are first touched.
        self.pages = torch.zeros(layers, pages * page_size, *row, device=placement.device, dtype=placement.dtype)
        self._scratch = self.pages.new_zeros(layers, 0, *row)
        self._workspace = self.pages.new_zeros(0, *row)

    @property
    def bytes_a_token(self) -> int:
        """In all layers."""
        layers, _, heads, size = self.pages.shape
        return layers * heads * size * self.pages.itemsize

    @property
    def scratch_rows(self) -> int:
        """Rows that scratch can hold where it is."""
        return self._scratch.shape[1]

    def scratch(self, rows: int) -> torch.Tensor:
        """[L, rows, C, D] for a step's keys and values; the same memory every step, so commit before the next."""
        if rows > self._scratch.shape[1]:
            layers, _, heads, size = self._scratch.shape
            self._scratch = self.pages.new_zeros(layers, _grown(rows), heads, size)
        return self._scratch[:, :rows]

    def workspace(self, rows: int) -> torch.Tensor:
        """[>= rows, C, D] for attention to gather into."""
        if rows > len(self._workspace):
            self._workspace = self.pages.new_zeros(_grown(rows), *self._workspace.shape[1:])
        return self._workspace


def _grown(rows: int) -> int:
    """The next power of two: few reallocations, whatever the sizes asked for."""
    return 1 << (rows - 1).bit_length()
