"""The rotation's kernel in Triton's interpreter against the complex product in float32."""

import pytest
import torch

from draftwood_kernels.rotary import kernel, reference

# Both compute in float32 and round once; where two products cancel, the error is that of the products (size 4).
TOLERANCE = {torch.float32: (1e-5, 2e-6), torch.float16: (2e-3, 2e-6), torch.bfloat16: (1.6e-2, 2e-6)}
DTYPES = list(TOLERANCE)


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def random_phases(rows: int, head_dim: int) -> torch.Tensor:
    return torch.polar(torch.ones(rows, 1, head_dim // 2), torch.rand(rows, 1, head_dim // 2) * 6.3)


def check(heads: torch.Tensor, phases: torch.Tensor) -> None:
    before = heads.clone()
    expected = reference.rotate_pairs(heads.float(), phases).to(heads.dtype)
    rtol, atol = TOLERANCE[heads.dtype]
    torch.testing.assert_close(kernel.rotate_pairs(heads, phases), expected, rtol=rtol, atol=atol)
    assert torch.equal(heads, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 63, 100, 257])
def test_rows(rows: int, dtype: torch.dtype) -> None:
    heads = int(torch.randint(1, 20, ()))
    check(torch.randn(rows, heads, 64).to(dtype), random_phases(rows, 64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [1, 8, 11])
def test_heads_cut_out_of_a_fused_row(heads: int, head_dim: int, dtype: torch.dtype) -> None:
    fused = torch.randn(5, heads + 3, head_dim).to(dtype)
    check(fused.narrow(1, 2, heads), random_phases(5, head_dim))


def test_no_rows_and_no_heads() -> None:
    assert kernel.rotate_pairs(torch.randn(0, 4, 64), random_phases(0, 64)).shape == (0, 4, 64)
    assert kernel.rotate_pairs(torch.randn(4, 0, 64), random_phases(4, 64)).shape == (4, 0, 64)
