"""Outputs of the layers that drafters want, where a graph leaves them.

A graph's own memory is the next graph's too, so they are copied out of it. Rows that are all plain are all wanted, and
go on to the host at once: asked for later, they would have to wait for what was queued behind.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.placement import Placement


class KeptFeatures:
    """By layer [rows, hidden] of the placement's dtype."""

    def __init__(self, layer_ids: tuple[int, ...], rows: int, hidden_size: int, placement: Placement) -> None:
        self.device = {
            layer: torch.zeros(rows, hidden_size, device=placement.device, dtype=placement.dtype) for layer in layer_ids
        }
        self._host: dict[int, torch.Tensor] = {}
        self._is_gpu = placement.is_gpu

    def keep(self, outputs: dict[int, torch.Tensor]) -> None:
        """Queue the copies of a step's rows."""
        for layer, rows in outputs.items():
            self.device[layer][: len(rows)].copy_(rows)

    def download(self, rows: int) -> None:
        """Queue the copies of the first rows to the host."""
        for layer, kept in self.device.items():
            if layer not in self._host or len(self._host[layer]) < rows:
                room = 1 << (rows - 1).bit_length()
                self._host[layer] = torch.zeros(room, kept.shape[1], dtype=kept.dtype, pin_memory=self._is_gpu)
            self._host[layer][:rows].copy_(kept[:rows], non_blocking=True)

    def rows(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> NDArray[np.float32]:
        """[rows, len(layer_ids) * hidden] of what was downloaded, once that is done.

        Raises KeyError for a layer that was not.
        """
        index = torch.from_numpy(rows)
        array: NDArray[np.float32] = (
            torch.cat([self._host[i].index_select(0, index) for i in layer_ids], 1).float().numpy()
        )
        return array
