"""Parts of quantised matrices are the same parts of the whole."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwood_checkpoint.errors import UnsupportedTensor
from draftwood_checkpoint.quantization import Quantization, QuantizedTensor, load_weight
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.quantized_linear import dequantize

FP8 = Quantization(fp8_block=(16, 32))
INT4 = Quantization(int4_group=32)
SHAPE = (40, 96)


def write(folder: Path) -> Checkpoint:
    torch.manual_seed(0)
    rows, columns = SHAPE
    tensors = {
        "fp8.weight": (torch.randn(SHAPE) * 40).to(torch.float8_e4m3fn),
        "fp8.weight_scale_inv": torch.rand(-(-rows // 16), -(-columns // 32)),
        "int4.weight_packed": torch.randint(-(2**31), 2**31, (rows, columns // 8), dtype=torch.int32),
        "int4.weight_scale": torch.rand(rows, columns // 32).to(torch.bfloat16),
        "int4.weight_shape": torch.tensor(SHAPE),
        "plain.weight": torch.randn(SHAPE),
    }
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint(folder)


def numbers(weight: torch.Tensor | QuantizedTensor) -> torch.Tensor:
    return weight if isinstance(weight, torch.Tensor) else dequantize(weight.codes, weight.scales, weight.group)


@pytest.mark.parametrize("rows", [None, slice(0, 10), slice(7, 33), slice(39, 40)])
@pytest.mark.parametrize("columns", [None, slice(0, 32), slice(32, 96)])
@pytest.mark.parametrize(("name", "scheme"), [("fp8", FP8), ("int4", INT4), ("plain", INT4)])
def test_parts(name: str, scheme: Quantization, rows: slice | None, columns: slice | None, tmp_path: Path) -> None:
    checkpoint = write(tmp_path)
    whole = numbers(load_weight(checkpoint, name, SHAPE, scheme))
    part = numbers(load_weight(checkpoint, name, SHAPE, scheme, rows=rows, columns=columns))
    assert torch.equal(part, whole[rows or slice(None), columns or slice(None)])


@pytest.mark.parametrize(("name", "scheme"), [("fp8", FP8), ("int4", INT4)])
def test_columns_inside_of_a_group_are_refused(name: str, scheme: Quantization, tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedTensor, match=rf"^{name}\.weight: columns 8 to 64 do not start and end at groups of 32"
    ):
        load_weight(write(tmp_path), name, SHAPE, scheme, columns=slice(8, 64))


def test_codes_by_hand() -> None:
    """Word 0x…10: the lowest bits are the first code, stored plus 8."""
    words = torch.tensor([[0x76543210]], dtype=torch.int32)
    expected = [[-8.0, -7, -6, -5, -4, -3, -2, -1]]
    assert dequantize(words, torch.ones(1, 1), 8).tolist() == expected
    assert dequantize(torch.tensor([[-1]], dtype=torch.int32), torch.tensor([[0.5]]), 8).tolist() == [[3.5] * 8]
