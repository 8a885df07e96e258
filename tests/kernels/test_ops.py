"""Small ops against their formula in float64, and the promises their users rely on."""

from dataclasses import dataclass, field

import pytest
import torch

from draftwood_kernels.commit_kv import commit_kv
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rms_norm import add_rms_norm, rms_norm
from draftwood_kernels.rotary import RotaryTable, halves_to_pairs, rotate_pairs
from draftwood_kernels.silu_and_mul import silu_and_mul

# float32 arithmetic over some hundred terms of size 1.
RTOL, ATOL = 1e-5, 2e-5
ROWS = [1, 2, 5, 17, 63, 100, 256]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@dataclass(frozen=True)
class Rope:
    theta: float = 1000.0
    kind: str = "default"
    parameters: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("outs", "ins"), [(96, 64), (63, 100), (1000, 48)])
def test_linear(outs: int, ins: int, bias: bool) -> None:
    weight, offset = torch.randn(outs, ins), torch.randn(outs) if bias else None
    linear = PackedLinear(weight, offset)
    for rows in ROWS:
        x = torch.randn(rows, ins)
        expected = x.double() @ weight.double().T + (0 if offset is None else offset.double())
        torch.testing.assert_close(linear(x), expected.float(), rtol=1e-5, atol=1e-4)


def test_a_row_of_a_linear_does_not_depend_on_its_neighbours() -> None:
    linear, x = PackedLinear(torch.randn(512, 256)), torch.randn(256, 256)
    whole = linear(x)
    for rows in ROWS:
        assert torch.equal(linear(x[:rows].contiguous()), whole[:rows])
    assert torch.equal(linear(x[40:41].contiguous()), whole[40:41])


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_rms_norm(scale: float) -> None:
    x, residual, weight = torch.randn(17, 96) * scale, torch.randn(17, 96) * scale, torch.rand(96) + 0.5
    total = x.double() + residual.double()
    expected = total / (total.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    before = x.clone(), residual.clone()
    normed, added = add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(normed, expected.float(), rtol=RTOL, atol=ATOL)
    torch.testing.assert_close(added, total.float(), rtol=RTOL, atol=ATOL)
    torch.testing.assert_close(rms_norm(added, weight, 1e-6), normed, rtol=RTOL, atol=ATOL)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_rms_norm_of_zeros_is_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(3, 8), None, 1e-6), torch.zeros(3, 8))


def test_silu_and_mul() -> None:
    gate_up = torch.randn(9, 126)
    gate, up = gate_up.double().chunk(2, dim=-1)
    torch.testing.assert_close(silu_and_mul(gate_up), (gate * gate.sigmoid() * up).float(), rtol=RTOL, atol=ATOL)


def test_rotations_of_both_layouts_agree() -> None:
    table = RotaryTable(Rope(), 16, 64)
    heads, positions = torch.randn(5, 3, 16), torch.tensor([0, 63, 7, 7, 30])

    def pairs(x: torch.Tensor) -> torch.Tensor:
        return halves_to_pairs(x.movedim(-1, 0), 16).movedim(0, -1).contiguous()

    rotated = table.rotate(heads, positions)
    torch.testing.assert_close(
        rotate_pairs(pairs(heads), table.phases(positions)), pairs(rotated), rtol=RTOL, atol=ATOL
    )
    torch.testing.assert_close(rotated[0], heads[0])
    angle = 7 * 1000.0 ** -(torch.arange(0, 16, 2).double() / 16)
    left, right = heads[2].double().chunk(2, dim=-1)
    expected = torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], dim=-1)
    torch.testing.assert_close(rotated[2], expected.float(), rtol=RTOL, atol=ATOL)


def test_unknown_rope_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="longrope"):
        RotaryTable(Rope(kind="longrope"), 16, 64)


def test_commit_moves_all_layers() -> None:
    scratch, pages = torch.randn(3, 6, 4, 8), torch.zeros(3, 20, 4, 8)
    commit_kv(scratch, pages, torch.tensor([0, 5, 2]), torch.tensor([7, 8, 19]))
    assert torch.equal(pages[:, [7, 8, 19]], scratch[:, [0, 5, 2]])
    assert not pages[:, :7].any()
    assert not pages[:, 9:19].any()
