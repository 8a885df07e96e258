"""The row-invariant product in Triton's interpreter: right, and a row's bits whatever stands beside it."""

import pytest
import torch

from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.linear.kernel import row_invariant_linear

# Sums of hundreds of products in float32 in another order; results of 16 bits are rounded once.
TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float16: (2e-3, 1e-4), torch.bfloat16: (1.6e-2, 1e-4)}


pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("bias", [True, False])
# Many outputs are not split; few outputs of many inputs are; the odd sizes end inside their blocks.
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (63, 100), (65, 1000), (1, 1), (70, 1027)])
def test_products(outputs: int, inputs: int, bias: bool, dtype: torch.dtype) -> None:
    weight = torch.randn(outputs, inputs).to(dtype)
    offset = torch.randn(outputs).to(dtype) if bias else None
    for rows in (1, 5, 65):
        x = torch.randn(rows, inputs).to(dtype)
        expected = x.double() @ weight.double().T + (0 if offset is None else offset.double())
        rtol, atol = TOLERANCE[dtype]
        torch.testing.assert_close(row_invariant_linear(x, weight, offset), expected.to(dtype), rtol=rtol, atol=atol)


def test_many_outputs_in_one_split() -> None:
    x, weight = torch.randn(3, 64), torch.randn(4200, 64)
    torch.testing.assert_close(row_invariant_linear(x, weight, None), x @ weight.T, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("rows_multiplied_alike")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 600), (40, 130)])
def test_a_row_does_not_depend_on_its_neighbours(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight, x = torch.randn(outputs, inputs).to(dtype), torch.randn(256, inputs).to(dtype)
    whole = row_invariant_linear(x, weight, None)
    for rows in (1, 7, 16, 64):
        assert torch.equal(row_invariant_linear(x[:rows], weight, None), whole[:rows])
    # Another place in the tile, other neighbours.
    assert torch.equal(row_invariant_linear(x[77:78], weight, None), whole[77:78])
    assert torch.equal(row_invariant_linear(x[70:90], weight, None), whole[70:90])


@pytest.mark.usefixtures("rows_multiplied_alike")
def test_rows_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = torch.randn(100, 300), torch.randn(40, 300), torch.randn(40)
    whole = row_invariant_linear(x, weight, bias)
    monkeypatch.setattr("draftwood_kernels.linear.kernel._MOST_ROWS", 32)
    assert torch.equal(row_invariant_linear(x, weight, bias), whole)


def test_no_rows_and_rows_of_a_wider_tensor() -> None:
    weight = torch.randn(20, 64)
    assert row_invariant_linear(torch.empty(0, 64), weight, None).shape == (0, 20)
    wide = torch.randn(5, 100)
    torch.testing.assert_close(row_invariant_linear(wide[:, 10:74], weight, None), wide[:, 10:74] @ weight.T)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"^x: .* does not fit weight"):
        row_invariant_linear(torch.zeros(2, 8), torch.zeros(3, 9), None)
    with pytest.raises(ValueError, match=r"^x: .* does not fit weight"):
        row_invariant_linear(torch.zeros(2, 8), torch.zeros(3, 8, dtype=torch.float16), None)
    with pytest.raises(ValueError, match=r"^weight: has to be dense"):
        row_invariant_linear(torch.zeros(2, 8), torch.zeros(8, 3).T, None)


def test_the_switch_on_a_cpu() -> None:
    x, weight = torch.randn(9, 64), torch.randn(48, 64)
    assert torch.equal(PackedLinear(weight, row_invariant=True)(x), PackedLinear(weight)(x))
    with pytest.raises(ValueError, match=r"^weight: torch.bfloat16 on cpu"):
        PackedLinear(weight.bfloat16(), row_invariant=True)
