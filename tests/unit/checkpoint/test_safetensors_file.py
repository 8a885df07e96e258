"""Our reader of the format against the library that writes it."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwood_checkpoint.errors import CheckpointError
from draftwood_checkpoint.safetensors_file import SafetensorsFile

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """fp8 has no equality."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8))


def test_every_dtype_shape_and_part(tmp_path: Path) -> None:
    shapes = [(), (0,), (5,), (3, 4), (2, 3, 5)]
    tensors = {f"{dtype}{list(shape)}": (torch.randn(shape) * 40).to(dtype) for dtype in DTYPES for shape in shapes}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file.names()) == set(tensors)
    for name, tensor in tensors.items():
        assert (file.shape(name), file.dtype(name)) == (tuple(tensor.shape), tensor.dtype)
        assert same(file.read(name), tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32])
@pytest.mark.parametrize("rows", [None, slice(0, 9), slice(2, 5), slice(8, 9), slice(4, 4)])
@pytest.mark.parametrize("columns", [None, slice(0, 7), slice(1, 3), slice(6, 7)])
def test_parts_of_a_matrix(dtype: torch.dtype, rows: slice | None, columns: slice | None, tmp_path: Path) -> None:
    matrix = (torch.randn(9, 7) * 40).to(dtype)
    save_file({"before": torch.ones(3), "m": matrix, "z": torch.ones(2)}, tmp_path / "x.safetensors")
    part = SafetensorsFile(tmp_path / "x.safetensors").read("m", rows, columns)
    assert same(part, matrix[rows or slice(None), columns or slice(None)])


def test_rows_of_a_vector(tmp_path: Path) -> None:
    save_file({"v": torch.arange(8.0)}, tmp_path / "x.safetensors")
    assert SafetensorsFile(tmp_path / "x.safetensors").read("v", slice(2, 5)).tolist() == [2, 3, 4]


def header(**entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 2**40) + b"{}",
        struct.pack("<Q", 3) + b"{:}",
        header(x={"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}) + b"1234567",
        header(x={"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}) + b"12345678",
        header(x={"dtype": "Q3", "shape": [2], "data_offsets": [0, 8]}) + b"12345678",
        header(x={"dtype": "F32", "data_offsets": [0, 8]}) + b"12345678",
    ],
)
def test_broken_files_are_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"broken\.safetensors: not a whole safetensors file"):
        SafetensorsFile(path)
