"""One safetensors file: the header is parsed once, of the tensors only the bytes asked for are read.

Read, not mapped: every page of a mapping that was touched stays resident while the mapping lives, and reading in order
is what network file systems do well.
"""

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftwood_checkpoint.errors import CheckpointError

# Source: the format's description in the safetensors repository.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class _Entry:
    """`start` counts bytes from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


class SafetensorsFile:
    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when the file is cut off or its header is not one."""
        self._path = path
        try:
            self._entries = _read_entries(path)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise CheckpointError(f"{path}: not a whole safetensors file: {error}") from error

    def names(self) -> list[str]:
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entries[name].dtype

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        """A new tensor of the file's own dtype; of a matrix, only some rows and columns (steps of 1)."""
        entry = self._entries[name]
        if rows is None and columns is None:
            return self._read(entry.dtype, entry.shape, entry.start)
        first, end, _ = (rows or slice(None)).indices(entry.shape[0])
        left, right, _ = (columns or slice(None)).indices(math.prod(entry.shape[1:]))
        width = math.prod(entry.shape[1:]) * entry.dtype.itemsize
        if right - left == math.prod(entry.shape[1:]):
            return self._read(entry.dtype, (end - first, *entry.shape[1:]), entry.start + first * width)
        out = torch.empty(end - first, right - left, dtype=entry.dtype)
        with self._path.open("rb", buffering=0) as file:
            for row in range(first, end):
                _fill(file.fileno(), out[row - first], entry.start + row * width + left * entry.dtype.itemsize)
        return out

    def _read(self, dtype: torch.dtype, shape: tuple[int, ...], start: int) -> torch.Tensor:
        out = torch.empty(shape, dtype=dtype)
        with self._path.open("rb", buffering=0) as file:
            _fill(file.fileno(), out, start)
        return out


def _read_entries(path: Path) -> dict[str, _Entry]:
    with path.open("rb") as file:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        available = os.fstat(file.fileno()).st_size - _LENGTH.size - length
        if available < 0:
            raise ValueError(f"the header is said to have {length} bytes")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: _entry(name, fields, _LENGTH.size + length, available) for name, fields in header.items()}


def _entry(name: str, fields: dict[str, Any], data_start: int, available: int) -> _Entry:
    kind, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if kind not in _DTYPES:
        raise ValueError(f"{name}: dtype {kind} is not one of {', '.join(_DTYPES)}")
    dtype = _DTYPES[str(kind)]
    begin, end = offsets
    if not 0 <= begin <= end <= available or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: {kind} {shape} does not fit bytes {begin} to {end} of {available}")
    return _Entry(dtype, tuple(shape), data_start + begin)


def _fill(descriptor: int, out: torch.Tensor, start: int) -> None:
    """One read may return less than asked for: 2 GiB is the most that Linux gives."""
    if not out.numel():
        return
    rest = memoryview(out.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    while len(rest):
        count = os.preadv(descriptor, [rest], start)
        if not count:
            raise CheckpointError("the file ended while it was read")
        rest, start = rest[count:], start + count
