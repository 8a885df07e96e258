"""The reference against a loop over numbers, and the kernel in Triton's interpreter against the reference."""

import pytest
import torch

from draftwood_kernels.quantized_linear import QuantizedLinear, dequantize, kernel, quantized_linear, reference

# Sums of up to 300 terms of size 1 in float32; results of 16-bit types are rounded once, their rows are exact.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 1.2e-3, torch.bfloat16: 9e-3}


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make(kind: str, outputs: int, inputs: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales so that the weight's numbers are of size 1."""
    scales = torch.rand(outputs, -(-inputs // group)) + 0.5
    if kind == "int4":
        return torch.randint(-(2**31), 2**31, (outputs, inputs // 8), dtype=torch.int32), scales / 4
    return torch.randn(outputs, inputs).to(torch.float8_e4m3fn), scales


def close(out: torch.Tensor, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, group: int) -> None:
    expected = x.double() @ dequantize(codes, scales, group).double().T
    size = float(expected.abs().max())
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCES[x.dtype], atol=TOLERANCES[x.dtype] * size)


@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_numbers_one_by_one(kind: str) -> None:
    codes, scales = make(kind, 5, 48, 16)
    weight = dequantize(codes, scales, 16)
    for o in range(5):
        for i in range(48):
            is_int4 = kind == "int4"
            code = (int(codes[o, i // 8]) >> (4 * (i % 8)) & 15) - 8.0 if is_int4 else float(codes[o, i])
            assert float(weight[o, i]) == pytest.approx(code * float(scales[o, i // 16]), rel=1e-6)


def test_leading_dimensions() -> None:
    codes, scales = make("int4", 6, 32, 32)
    stacked = dequantize(codes.view(2, 3, 4), scales.view(2, 3, 1), 32)
    assert torch.equal(stacked.view(6, 32), dequantize(codes, scales, 32))


@pytest.mark.parametrize("kind", ["fp8", "int4"])
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_the_op(kind: str, rows: int) -> None:
    codes, scales = make(kind, 40, 96, 32)
    x, bias = torch.randn(rows, 96), torch.randn(40)
    out = quantized_linear(x, codes, scales, 32)
    assert out.shape == (rows, 40)
    if rows:
        close(out, x, codes, scales, 32)
    assert torch.equal(QuantizedLinear(codes, scales, 32, bias)(x), out + bias)
    assert torch.equal(QuantizedLinear(codes, scales, 32)(x), out)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(
    ("kind", "outputs", "inputs", "group"),
    [
        ("fp8", 64, 128, 128),
        ("fp8", 100, 300, 128),
        ("fp8", 1, 63, 32),
        ("int4", 64, 64, 32),
        ("int4", 100, 224, 32),
        ("int4", 65, 256, 128),
    ],
)
@pytest.mark.parametrize("rows", [1, 33])
def test_the_kernel(kind: str, outputs: int, inputs: int, group: int, rows: int, dtype: torch.dtype) -> None:
    codes, scales = make(kind, outputs, inputs, group)
    x = torch.randn(rows, inputs).to(dtype)
    out = kernel.quantized_linear(x, codes, scales, group)
    assert (out.dtype, out.shape) == (dtype, (rows, outputs))
    close(out, x, codes, scales, group)
    torch.testing.assert_close(
        out.float(), reference.quantized_linear(x.float(), codes, scales, group), rtol=0.02, atol=0.2
    )


def test_every_fp8_code_is_decoded() -> None:
    """All but the two that are no numbers, subnormal ones too."""
    bits = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F] + [0, 0], dtype=torch.uint8)
    codes = bits.view(torch.float8_e4m3fn).view(8, 32)
    out = kernel.quantized_linear(torch.eye(32), codes, torch.ones(8, 1), 32)
    assert torch.equal(out.T, codes.float())


def test_rows_with_a_stride_and_none_at_all() -> None:
    codes, scales = make("int4", 40, 64, 32)
    x = torch.randn(9, 100)[:, 20:84]
    assert torch.equal(
        kernel.quantized_linear(x, codes, scales, 32), kernel.quantized_linear(x.clone(), codes, scales, 32)
    )
    assert kernel.quantized_linear(x[:0], codes, scales, 32).shape == (0, 40)


@pytest.mark.usefixtures("rows_multiplied_alike")
def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    codes, scales = make("fp8", 70, 300, 128)
    x = torch.randn(45, 300)
    together = kernel.quantized_linear(x, codes, scales, 128)
    for row in (0, 31, 32, 44):
        assert torch.equal(kernel.quantized_linear(x[row : row + 1], codes, scales, 128)[0], together[row])


def test_odd_groups_are_refused() -> None:
    codes, scales = make("fp8", 8, 96, 48)
    with pytest.raises(ValueError, match="group: 48"):
        kernel.quantized_linear(torch.randn(2, 96), codes, scales, 48)
