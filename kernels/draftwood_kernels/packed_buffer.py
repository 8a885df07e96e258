"""Arrays of a step that travel together: one copy between host and device, whatever their types."""

from dataclasses import dataclass
from math import prod

import torch

# Of every array's first byte; wide loads of kernels want it.
_ALIGNMENT = 16


@dataclass(frozen=True, kw_only=True)
class Field:
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class PackedBuffer:
    """`host` and `device` hold the fields by name, as views of two blocks of bytes that stay where they are.

    The host's block is pinned beside a GPU, so that copies do not wait.
    """

    def __init__(self, fields: dict[str, Field], device: torch.device) -> None:
        size_bytes = sum(_aligned(field.size_bytes) for field in fields.values())
        self._is_gpu = device.type == "cuda"
        self._host = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=self._is_gpu)
        self._device = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        self.host = _views(self._host, fields)
        self.device = _views(self._device, fields)
        self._copied = torch.cuda.Event() if self._is_gpu else None

    def upload(self) -> None:
        """Queue the copy of the host's side to the device; see `settle`."""
        self._copy(self._host, self._device)

    def download(self) -> None:
        """Queue the copy of the device's side to the host; see `settle`."""
        self._copy(self._device, self._host)

    def settle(self) -> None:
        """Wait until the last copy is done: before the host reads what came, or overwrites what goes."""
        if self._copied is not None:
            self._copied.synchronize()

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _views(block: torch.Tensor, fields: dict[str, Field]) -> dict[str, torch.Tensor]:
    views, first = {}, 0
    for name, field in fields.items():
        views[name] = block[first : first + field.size_bytes].view(field.dtype).view(field.shape)
        first += _aligned(field.size_bytes)
    return views
