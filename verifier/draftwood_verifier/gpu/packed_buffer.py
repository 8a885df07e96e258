"""Many small arrays in one block of memory, so that all of them cross to the device in one copy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

# Kernels are compiled for pointers that are multiples of this.
_ALIGNMENT = 16

Fields = Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
_TORCH = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class PackedBuffer:
    """`host` and `device` are views by field name, of a pinned block and of its copy; zeros until they are written."""

    def __init__(self, fields: Fields, device: torch.device) -> None:
        starts, end = {}, 0
        for name, (dtype, shape) in fields.items():
            starts[name] = end
            end += -(-_bytes(dtype, shape) // _ALIGNMENT) * _ALIGNMENT
        self._staging = torch.zeros(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._block = torch.zeros(end, dtype=torch.uint8, device=device)
        self.host: dict[str, NDArray[Any]] = {}
        self.device: dict[str, torch.Tensor] = {}
        for name, (dtype, shape) in fields.items():
            part = slice(starts[name], starts[name] + _bytes(dtype, shape))
            self.host[name] = self._staging.numpy()[part].view(dtype).reshape(shape)
            self.device[name] = self._block[part].view(_TORCH[np.dtype(dtype)]).view(shape)

    def upload(self) -> None:
        """Queue the copy to the device; `host` stays as it is until that is done."""
        self._block.copy_(self._staging, non_blocking=True)

    def download(self) -> None:
        """Queue the copy to the host; `host` is to be read once it is done."""
        self._staging.copy_(self._block, non_blocking=True)


def _bytes(dtype: DTypeLike, shape: tuple[int, ...]) -> int:
    return np.dtype(dtype).itemsize * int(np.prod(shape))
