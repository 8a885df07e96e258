"""SiLU-mul's kernel in Triton's interpreter against the reference in float32."""

import pytest
import torch

from draftwood_kernels.silu_and_mul import kernel, reference

# Both compute in float32 and round once: two neighbours of the type at the most.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def check(gate_up: torch.Tensor) -> None:
    expected = reference.silu_and_mul(gate_up.float()).to(gate_up.dtype)
    rtol = TOLERANCE[gate_up.dtype]
    torch.testing.assert_close(kernel.silu_and_mul(gate_up), expected, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 63, 100, 257])
def test_rows(rows: int, dtype: torch.dtype) -> None:
    width = int(torch.randint(1, 2500, ()))
    check((torch.randn(rows, 2 * width) * 3).to(dtype))


@pytest.mark.parametrize("width", [1, 63, 1023, 1024, 1025])
def test_edges_of_a_block(width: int) -> None:
    check(torch.randn(3, 2 * width))


def test_rows_with_a_stride() -> None:
    check(torch.randn(9, 300)[:, 40:240])
    check(torch.randn(60, 9).T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_gates(dtype: torch.dtype) -> None:
    gates = torch.tensor([-6e4, -200, -89, -20, 0, 20, 89, 200])
    check(torch.cat([gates, torch.ones(8)])[None].to(dtype))
