"""Dense arrays on the wire: row-major, contiguous, little-endian bytes with a dtype and a shape.

NumPy has no bfloat16, so such a tensor is rounded from and widened to float32 here.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwood_wire.errors import MalformedTensor
from draftwood_wire.v1 import tensor_pb2
from draftwood_wire.v1.tensor_pb2 import DataType

# gRPC refuses messages over 4 MiB unless told otherwise; ours stay well below.
MAX_CHUNK_BYTES = 512 * 1024

_ITEM_BYTES = {
    tensor_pb2.DATA_TYPE_FLOAT32: 4,
    tensor_pb2.DATA_TYPE_FLOAT16: 2,
    tensor_pb2.DATA_TYPE_BFLOAT16: 2,
}


def tensor_to_proto(
    array: NDArray[np.float32], data_type: DataType = tensor_pb2.DATA_TYPE_FLOAT32
) -> tensor_pb2.Tensor:
    """Encode a float32 array of any shape as `data_type`."""
    dense = np.ascontiguousarray(array, dtype="<f4")
    if data_type == tensor_pb2.DATA_TYPE_FLOAT32:
        data = dense.tobytes()
    elif data_type == tensor_pb2.DATA_TYPE_FLOAT16:
        data = dense.astype("<f2").tobytes()
    elif data_type == tensor_pb2.DATA_TYPE_BFLOAT16:
        data = _round_to_bfloat16(dense).tobytes()
    else:
        raise MalformedTensor(f"data_type: {data_type} is not a dtype that can be sent")
    return tensor_pb2.Tensor(data_type=data_type, shape=array.shape, data=data)


def tensor_from_proto(message: tensor_pb2.Tensor) -> NDArray[np.float32]:
    """Decode to float32; raises MalformedTensor when dtype, shape and byte count disagree."""
    item_bytes = _ITEM_BYTES.get(message.data_type)
    if item_bytes is None:
        raise MalformedTensor(f"data_type: {message.data_type} is unknown")
    shape = tuple(message.shape)
    if any(size < 0 for size in shape):
        raise MalformedTensor(f"shape: {shape} has a negative size")
    # Python integers: a hostile shape must not overflow its way to the right byte count.
    expected = item_bytes
    for size in shape:
        expected *= size
    if expected != len(message.data):
        raise MalformedTensor(f"data: {len(message.data)} bytes, shape {shape} takes {expected}")
    try:
        return _decode(message.data, message.data_type).reshape(shape)
    except ValueError as error:
        raise MalformedTensor("shape: no array can have this shape") from error


def row_chunks(array: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Cut [rows, width] into (first row, rows) pieces of at most MAX_CHUNK_BYTES in float32, one row at least."""
    rows = max(1, MAX_CHUNK_BYTES // max(1, 4 * array.shape[1]))
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def _round_to_bfloat16(dense: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = dense.view("<u4")
    nan = np.isnan(dense)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    return np.where(nan, 0x7FC0, rounded).astype("<u2")


def _decode(data: bytes, data_type: int) -> NDArray[np.float32]:
    if data_type == tensor_pb2.DATA_TYPE_FLOAT32:
        return np.frombuffer(data, dtype="<f4")
    if data_type == tensor_pb2.DATA_TYPE_FLOAT16:
        return np.frombuffer(data, dtype="<f2").astype(np.float32)
    widened: NDArray[Any] = np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16
    return widened.view(np.float32)
