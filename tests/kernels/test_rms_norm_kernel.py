"""RMSNorm's kernel in Triton's interpreter against the reference in float32."""

import pytest
import torch

from draftwood_kernels.rms_norm import kernel, reference

EPS = 1e-6
# Both compute in float32 and round once: two neighbours of the type at the most.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)
ROWS = [0, 1, 63, 100, 257]


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    rtol = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_rows(rows: int, dtype: torch.dtype) -> None:
    width = int(torch.randint(1, 1200, ()))
    x, weight = torch.randn(rows, width).to(dtype), torch.randn(width).to(dtype)
    close(kernel.rms_norm(x, weight, EPS), reference.rms_norm(x.float(), weight.float(), EPS))
    close(kernel.rms_norm(x, None, EPS), reference.rms_norm(x.float(), None, EPS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_behind_a_residual(rows: int, dtype: torch.dtype) -> None:
    width = int(torch.randint(1, 1200, ()))
    x, residual, weight = (torch.randn(*shape).to(dtype) for shape in ((rows, width), (rows, width), (width,)))
    before = x.clone(), residual.clone()
    normed, total = kernel.add_rms_norm(x, residual, weight, EPS)
    # The interpreter cuts a float32 to bfloat16 where torch, and a GPU, round it.
    rtol = TOLERANCE[dtype] if dtype == torch.bfloat16 else 0
    torch.testing.assert_close(total, x + residual, rtol=rtol, atol=0)
    close(normed, reference.rms_norm(total.float(), weight.float(), EPS))
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_heads_cut_out_of_a_fused_row(head_dim: int, dtype: torch.dtype) -> None:
    fused, weight = torch.randn(17, 7, head_dim).to(dtype), torch.randn(5, head_dim).to(dtype)
    heads = fused.narrow(1, 1, 5)
    close(kernel.rms_norm(heads, weight, EPS), reference.rms_norm(heads.float(), weight.float(), EPS))


def test_every_shape_that_the_reference_takes() -> None:
    whole = torch.randn(5, 3, 2, 4, 16)
    for x, weight in [
        (whole[:, :, 0], None),
        (whole[:, :, 0], torch.randn(3, 1, 16)),
        (whole[0, 0, 0].T, torch.randn(4)),
        (whole[0, 0, 0, 0], torch.randn(16)),
        (whole[:, 0, 0], torch.randn(5, 1, 16)),
        (torch.zeros(3, 8), torch.ones(8)),
    ]:
        close(kernel.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    x, weight = torch.randn(256, 200), torch.randn(200)
    whole = kernel.rms_norm(x, weight, EPS)
    for rows in (1, 7, 16, 64):
        assert torch.equal(kernel.rms_norm(x[:rows], weight, EPS), whole[:rows])
