"""One launch for all groups, in Triton's interpreter, against the linears one by one in float64."""

from collections.abc import Callable, Iterator

import pytest
import torch

from draftwood_kernels.grouped_gemm import StackedLinear
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.quantized_linear import QuantizedLinear, dequantize

# As of grouped_gemm: a result is rounded once.
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 9e-3}
OUTPUTS, INPUTS = 70, 96
# Rows of each group: none at either end, all in one, tiles that are full and short.
COUNTS = [[0, 3, 0, 40, 0], [0, 0, 37], [33, 1, 32]]
KINDS = ("plain", "fp8", "int4", "mxfp4")
Linear = PackedLinear | QuantizedLinear


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def mxfp4_codes() -> torch.Tensor:
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    signs = torch.randint(0, 2, (OUTPUTS, INPUTS)) * 2 - 1
    return (magnitudes[torch.randint(0, 8, (OUTPUTS, INPUTS))] * signs).to(torch.float8_e4m3fn)


def linear_of(kind: str, bias: torch.Tensor | None, dtype: torch.dtype) -> tuple[Linear, torch.Tensor]:
    """A linear, and its weight in float64."""
    if kind == "plain":
        weight = torch.randn(OUTPUTS, INPUTS).to(dtype)
        return PackedLinear(weight, bias), weight.double()
    scales, group = torch.rand(OUTPUTS, 3) + 0.5, 32
    if kind == "int4":
        codes = torch.randint(-(2**31), 2**31, (OUTPUTS, INPUTS // 8), dtype=torch.int32)
    elif kind == "mxfp4":
        codes, scales = mxfp4_codes(), torch.exp2(torch.randint(-3, 3, (OUTPUTS, 3)).float())
    else:
        codes, scales, group = torch.randn(OUTPUTS, INPUTS).to(torch.float8_e4m3fn), scales[:, :1], 128
    return QuantizedLinear(codes, scales, group, bias), dequantize(codes, scales, group).double()


def check(kind: str, counts: list[int], dtype: torch.dtype, *, bias: bool) -> None:
    groups, rows = len(counts), torch.randn(sum(counts), INPUTS).to(dtype)
    biases = torch.randn(groups, OUTPUTS).to(dtype) * 10
    made = [linear_of(kind, biases[group].clone() if bias else None, dtype) for group in range(groups)]
    stacked = StackedLinear((linear for linear, _ in made), groups)
    offsets = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    out = stacked(rows, offsets)
    assert out.dtype == dtype
    parts = [part.double() @ weight.T for part, (_, weight) in zip(rows.split(counts), made, strict=True)]
    expected = torch.cat(parts) + (biases.double().repeat_interleave(torch.tensor(counts), dim=0) if bias else 0)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.fixture
def plain_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 weights stay as they are, as on a GPU."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("plain_on_a_cpu")
def test_every_kind_of_weight(kind: str, bias: bool) -> None:
    check(kind, COUNTS[0], torch.float32, bias=bias)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16(kind: str) -> None:
    check(kind, COUNTS[0], torch.bfloat16, bias=True)


@pytest.mark.parametrize("counts", COUNTS[1:])
def test_rows_spread_unevenly(counts: list[int]) -> None:
    check("plain", counts, torch.bfloat16, bias=True)


def test_a_linear_is_copied_before_the_next_is_made() -> None:
    made: list[torch.Tensor] = []

    def drawn() -> Iterator[Linear]:
        for group in range(4):
            for earlier in made:
                earlier.fill_(torch.nan)
            made.append(torch.full((3, 4), float(group), dtype=torch.bfloat16))
            yield PackedLinear(made[-1])

    stacked = StackedLinear(drawn(), 4)
    out = stacked(torch.ones(4, 4, dtype=torch.bfloat16), torch.arange(5, dtype=torch.int32))
    assert torch.equal(out.float(), 4 * torch.arange(4.0)[:, None].expand(4, 3))


def plain(dtype: torch.dtype = torch.bfloat16, *, bias: bool = False) -> Linear:
    return PackedLinear(torch.ones(4, 32, dtype=dtype), torch.ones(4, dtype=dtype) if bias else None)


def codes(group: int) -> Linear:
    return QuantizedLinear(torch.ones(4, 32).to(torch.float8_e4m3fn), torch.ones(4, 1), group)


@pytest.mark.parametrize(
    "other", [lambda: plain(bias=True), lambda: plain(torch.float16), lambda: codes(32)], ids=["bias", "type", "codes"]
)
def test_unlike_linears_are_refused(other: Callable[[], Linear]) -> None:
    with pytest.raises(ValueError, match=r"^linear 2: is not stored like those before it"):
        StackedLinear([plain(), plain(), other()], 3)


def test_unlike_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^linear 1: is not stored like"):
        StackedLinear([codes(32), codes(64)], 2)


def test_what_is_packed_for_a_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^weight: is packed for a CPU, .* use GroupedLinear"):
        StackedLinear([plain(torch.float32)], 1)
