"""Experts one by one in float64 against the op and, interpreted, its kernels."""

import pytest
import torch

from draftwood_kernels.grouped_gemm import GroupedLinear, kernel
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.quantized_linear import dequantize

# As of quantized_linear: sums of up to 200 terms of size 1.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 1.2e-3, torch.bfloat16: 9e-3}
# Rows of each expert: tiles of 32 rows that are full, short, missing at either end.
COUNTS = [[3, 0, 40, 1], [0, 0, 5], [32, 32], [33, 64, 31, 0], [1]]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def offsets_of(counts: list[int]) -> list[int]:
    return [sum(counts[:expert]) for expert in range(len(counts) + 1)]


def expected_of(rows: torch.Tensor, weight: torch.Tensor, counts: list[int]) -> torch.Tensor:
    parts = rows.double().split(counts)
    return torch.cat([part @ expert.double().T for part, expert in zip(parts, weight, strict=True)])


def close(out: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCES[out.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("counts", COUNTS)
def test_the_op(counts: list[int]) -> None:
    weight, rows = torch.randn(len(counts), 70, 48), torch.randn(sum(counts), 48)
    grouped = GroupedLinear((PackedLinear(expert) for expert in weight), 70)
    close(grouped(rows, offsets_of(counts)), expected_of(rows, weight, counts))


def test_no_rows_at_all() -> None:
    grouped = GroupedLinear([PackedLinear(torch.randn(7, 4))] * 3, 7)
    assert grouped(torch.empty(0, 4), [0, 0, 0, 0]).shape == (0, 7)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("counts", COUNTS)
def test_the_kernel(counts: list[int], dtype: torch.dtype) -> None:
    weight, rows = torch.randn(len(counts), 70, 100).to(dtype), torch.randn(sum(counts), 100).to(dtype)
    out = kernel.grouped_gemm(rows, weight, torch.tensor(offsets_of(counts), dtype=torch.int32))
    close(out, expected_of(rows, weight, counts))


@pytest.mark.parametrize("counts", COUNTS[:3])
@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_the_kernel_on_codes(kind: str, counts: list[int]) -> None:
    experts, outputs, inputs, group = len(counts), 70, 160, 32
    scales = torch.rand(experts, outputs, inputs // group) + 0.5
    if kind == "int4":
        codes = torch.randint(-(2**31), 2**31, (experts, outputs, inputs // 8), dtype=torch.int32)
    else:
        codes = torch.randn(experts, outputs, inputs).to(torch.float8_e4m3fn)
    rows = torch.randn(sum(counts), inputs)
    out = kernel.grouped_quantized_gemm(rows, codes, scales, group, torch.tensor(offsets_of(counts), dtype=torch.int32))
    close(out, expected_of(rows, dequantize(codes, scales, group), counts))


def test_rows_behind_the_last_offset_belong_to_nobody() -> None:
    weight, bias, rows = torch.randn(2, 8, 16), torch.randn(2, 8), torch.randn(50, 16)
    rows[10:] = torch.nan
    torch.use_deterministic_algorithms(True)
    try:
        out = kernel.grouped_gemm(rows, weight, torch.tensor([0, 4, 10], dtype=torch.int32), bias)
    finally:
        torch.use_deterministic_algorithms(False)
    biases = bias.double().repeat_interleave(torch.tensor([4, 6]), dim=0)
    close(out[:10], expected_of(rows[:10], weight, [4, 6]) + biases)
    # Not even by a bias: fresh memory is NaN here.
    assert out[10:].isnan().all()


def test_a_row_has_the_same_bits_alone_and_among_other_experts() -> None:
    weight, rows = torch.randn(3, 70, 100), torch.randn(60, 100)
    together = kernel.grouped_gemm(rows, weight, torch.tensor([0, 20, 25, 60], dtype=torch.int32))
    alone = kernel.grouped_gemm(rows[22:23], weight, torch.tensor([0, 0, 1, 1], dtype=torch.int32))
    assert torch.equal(alone[0], together[22])
