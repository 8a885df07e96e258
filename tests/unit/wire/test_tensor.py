"""Tensors: a round trip a dtype, and hostile shapes that must not get past the byte count."""

import numpy as np
import pytest

from draftwood_wire.errors import MalformedTensor
from draftwood_wire.tensor import MAX_CHUNK_BYTES, row_chunks, tensor_from_proto, tensor_to_proto
from draftwood_wire.v1 import tensor_pb2
from draftwood_wire.v1.tensor_pb2 import DATA_TYPE_BFLOAT16, DATA_TYPE_FLOAT16, DATA_TYPE_FLOAT32, DataType

SHAPES = [(), (0,), (1,), (3, 5), (0, 7), (2, 3, 4)]


def sample(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("data_type", "relative"), [(DATA_TYPE_FLOAT32, 0.0), (DATA_TYPE_FLOAT16, 2**-11), (DATA_TYPE_BFLOAT16, 2**-8)]
)
def test_round_trip(shape: tuple[int, ...], data_type: DataType, relative: float) -> None:
    array = sample(shape)
    message = tensor_pb2.Tensor.FromString(tensor_to_proto(array, data_type).SerializeToString())
    back = tensor_from_proto(message)
    assert back.dtype == np.float32
    assert back.shape == shape
    # 6e-8 is the step of float16's subnormal numbers.
    np.testing.assert_allclose(back, array, rtol=relative, atol=6e-8 if relative else 0.0)


def test_bfloat16_rounds_to_even_and_keeps_the_special_values() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32)
    special = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    array = np.concatenate([bits.view(np.float32), special])
    back = tensor_from_proto(tensor_to_proto(array, DATA_TYPE_BFLOAT16))
    assert back[:3].view(np.uint32).tolist() == [0x3F800000, 0x3F820000, 0x3F810000]
    np.testing.assert_array_equal(back[3:], special)
    assert np.signbit(back[-1])


def test_a_strided_array_is_sent_densely() -> None:
    array = sample((6, 8))[::2, ::-1]
    np.testing.assert_array_equal(tensor_from_proto(tensor_to_proto(array)), array)


@pytest.mark.parametrize(
    ("shape", "data", "field"),
    [
        pytest.param([2], b"\0" * 4, "data", id="too few bytes"),
        pytest.param([1], b"\0" * 8, "data", id="too many bytes"),
        pytest.param([-1], b"\0" * 4, "shape", id="negative"),
        pytest.param([-2, -2], b"\0" * 16, "shape", id="negatives with a positive product"),
        pytest.param([2**32, 2**32], b"", "data", id="product wraps to zero in 64 bits"),
        pytest.param([2**62 + 1, 4], b"\0" * 16, "data", id="product wraps to the right count"),
        pytest.param([2**62], b"", "data", id="larger than memory"),
    ],
)
def test_hostile_shapes_are_refused_by_name(shape: list[int], data: bytes, field: str) -> None:
    message = tensor_pb2.Tensor(data_type=DATA_TYPE_FLOAT32, shape=shape, data=data)
    with pytest.raises(MalformedTensor, match=field):
        tensor_from_proto(message)


@pytest.mark.parametrize("shape", [[0, 2**62, 2**62], [0] * 1000])
def test_an_empty_tensor_of_absurd_shape_is_refused(shape: list[int]) -> None:
    """No byte is missing, but NumPy has no such array."""
    message = tensor_pb2.Tensor(data_type=DATA_TYPE_FLOAT32, shape=shape)
    with pytest.raises(MalformedTensor, match="shape"):
        tensor_from_proto(message)


@pytest.mark.parametrize("data_type", [0, 99])
def test_an_unknown_dtype_is_refused(data_type: int) -> None:
    message = tensor_pb2.Tensor(shape=[1], data=b"\0" * 4)
    message.data_type = data_type  # type: ignore[assignment]
    with pytest.raises(MalformedTensor, match="data_type"):
        tensor_from_proto(message)


@pytest.mark.parametrize("rows", [0, 1, 1000])
@pytest.mark.parametrize("width", [1, 768, MAX_CHUNK_BYTES])
def test_chunks_stay_below_the_limit_and_miss_nothing(rows: int, width: int) -> None:
    if rows * width > 10**7:
        rows = 3
    array = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    pieces = list(row_chunks(array))
    assert all(piece.nbytes <= MAX_CHUNK_BYTES or len(piece) == 1 for _, piece in pieces)
    assert [start for start, _ in pieces] == np.cumsum([0, *(len(piece) for _, piece in pieces)])[:-1].tolist()
    assert sum(len(piece) for _, piece in pieces) == rows
    if pieces:
        np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), array)
