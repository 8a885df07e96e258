"""All experts of a layer in one launch, over rows sorted by expert.

A program owns a tile of one expert's rows and a block of outputs; an expert's tiles start at its own first row and have
fixed sizes, so a row's bits do not depend on what else is in the batch. Experts without rows cost a few idle programs.
How many rows an expert has, the device knows: the grid is sized for the worst case.

Shapes: M rows, X experts, I inputs, O outputs.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.quantized_linear.kernel import STAGES, WARPS, check_codes, scaled_product, tile
from draftwood_kernels.specialisation import Specialisation


def grouped_gemm(
    rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """rows [M, I], weight [X, O, I] of one type, offsets int32 [X + 1] on their device -> a new [M, O].

    bias float [X, O] is added before the result is rounded.

    Rows offsets[x] … offsets[x + 1] - 1 go through expert x; rows behind the last offset belong to nobody and their
    outputs are not written.
    """
    experts, outputs, inputs = weight.shape
    assert rows.dtype == weight.dtype, f"{rows.dtype} rows on {weight.dtype} weights"
    assert rows.shape[1] == inputs, f"rows of {rows.shape[1]} inputs beside {inputs}"
    assert weight.is_contiguous(), "no strides of weights"
    _check_offsets(offsets, experts)
    _check_bias(bias, experts, outputs)
    out = torch.empty(len(rows), outputs, dtype=rows.dtype, device=rows.device)
    sizes = tile(rows.dtype.itemsize)
    if out.numel():
        _grouped_gemm_kernel[_grid(len(rows), experts, outputs, sizes)](
            rows.contiguous(),
            weight,
            bias,
            out,
            offsets,
            experts,
            inputs,
            outputs,
            # The interpreter takes bfloat16 in a product for the integers of its bits.
            WIDEN=rows.device.type == "cpu",
            **sizes,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    return out


def grouped_quantized_gemm(
    rows: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    offsets: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`grouped_gemm` on codes [X, O, …] and scales float32 [X, O, ceil(I / group)] as `quantized_linear` has them."""
    experts, outputs = codes.shape[:2]
    is_int4 = codes.dtype == torch.int32
    check_codes(rows.shape[1], codes, scales, group)
    _check_offsets(offsets, experts)
    _check_bias(bias, experts, outputs)
    out = torch.empty(len(rows), outputs, dtype=rows.dtype, device=rows.device)
    sizes = tile(rows.dtype.itemsize)
    if out.numel():
        _grouped_quantized_kernel[_grid(len(rows), experts, outputs, sizes)](
            rows.contiguous(),
            codes if is_int4 else codes.view(torch.uint8),
            scales,
            bias,
            out,
            offsets,
            experts,
            rows.shape[1],
            outputs,
            IS_INT4=is_int4,
            GROUP=group,
            WIDEN=rows.device.type == "cpu",
            **sizes,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    return out


def _grid(rows: int, experts: int, outputs: int, sizes: dict[str, int]) -> tuple[int, int]:
    return rows // sizes["BLOCK_M"] + experts, triton.cdiv(outputs, sizes["BLOCK_N"])


def _check_offsets(offsets: torch.Tensor, experts: int) -> None:
    assert offsets.dtype == torch.int32, f"offsets are {offsets.dtype}"
    assert len(offsets) == experts + 1, f"{len(offsets)} offsets of {experts} experts"


def _check_bias(bias: torch.Tensor | None, experts: int, outputs: int) -> None:
    if bias is not None:
        assert bias.shape == (experts, outputs), f"bias {list(bias.shape)} beside {experts} experts of {outputs}"
        assert bias.is_contiguous(), "no strides of biases"


@triton.jit
def _expert_of(offsets: tl.tensor, tile: tl.tensor, experts: tl.tensor, BLOCK_M: tl.constexpr) -> tl.tensor:
    """The last expert whose first tile is not behind `tile`; expert x starts at tile offsets[x] // BLOCK_M + x."""
    low = 0
    high = experts
    while low < high:
        middle = (low + high) // 2
        if tl.load(offsets + middle) // BLOCK_M + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _biased(acc: tl.tensor, bias: tl.tensor, expert: tl.tensor, output: tl.tensor, outputs: tl.tensor) -> tl.tensor:
    if bias is not None:
        at = bias + expert.to(tl.int64) * outputs + output
        acc += tl.load(at, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    return acc


@triton.jit
def _grouped_gemm_kernel(
    rows: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    offsets: tl.tensor,
    experts: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    tile = tl.program_id(0)
    expert = _expert_of(offsets, tile, experts, BLOCK_M)
    first = tl.load(offsets + expert)
    end = tl.load(offsets + expert + 1)
    start = first + (tile - first // BLOCK_M - expert) * BLOCK_M
    if start >= end:
        return
    row = start + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    base = weight + expert.to(tl.int64) * outputs * inputs
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, inputs, BLOCK_K):
        column = k + tl.arange(0, BLOCK_K)
        there = (column < inputs)[None, :]
        at = row.to(tl.int64)[:, None] * inputs + column[None, :]
        x = tl.load(rows + at, mask=(row < end)[:, None] & there, other=0.0)
        at = output.to(tl.int64)[:, None] * inputs + column[None, :]
        w = tl.load(base + at, mask=(output < outputs)[:, None] & there, other=0.0)
        if WIDEN:
            x, w = x.to(tl.float32), w.to(tl.float32)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    acc = _biased(acc, bias, expert, output, outputs)
    at = row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=(row < end)[:, None] & (output < outputs)[None, :])


@triton.jit
def _grouped_quantized_kernel(
    rows: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    offsets: tl.tensor,
    experts: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    IS_INT4: tl.constexpr,
    GROUP: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    tile = tl.program_id(0)
    expert = _expert_of(offsets, tile, experts, BLOCK_M)
    first = tl.load(offsets + expert)
    end = tl.load(offsets + expert + 1)
    start = first + (tile - first // BLOCK_M - expert) * BLOCK_M
    if start >= end:
        return
    row = start + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    width = inputs // 8 if IS_INT4 else inputs
    acc = scaled_product(
        rows,
        codes + expert.to(tl.int64) * outputs * width,
        scales + expert.to(tl.int64) * outputs * tl.cdiv(inputs, GROUP),
        row,
        row < end,
        output,
        outputs,
        inputs,
        inputs,
        IS_INT4,
        GROUP,
        WIDEN,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    acc = _biased(acc, bias, expert, output, outputs)
    at = row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=(row < end)[:, None] & (output < outputs)[None, :])


_SIZES = dict.fromkeys(("experts", "inputs", "outputs"), "i32")


def _plain(dtype: str, itemsize: int, *, bias: bool) -> Specialisation:
    return Specialisation(
        kernel=_grouped_gemm_kernel,
        name=f"{dtype} experts{' bias' if bias else ''}",
        signature=dict.fromkeys(("rows", "weight", "out", *(("bias",) if bias else ())), f"*{dtype}")
        | {"offsets": "*i32"}
        | _SIZES,
        constexprs={"WIDEN": False, **tile(itemsize), **_absent(bias)},
        num_warps=WARPS,
        num_stages=STAGES,
    )


def _quantized(dtype: str, itemsize: int, group: int, *, is_int4: bool, bias: bool) -> Specialisation:
    return Specialisation(
        kernel=_grouped_quantized_kernel,
        name=f"{'int4' if is_int4 else 'fp8'} experts group {group}{' bias' if bias else ''}, {dtype} rows",
        signature={"rows": f"*{dtype}", "codes": "*i32" if is_int4 else "*u8", "scales": "*fp32", "out": f"*{dtype}"}
        | ({"bias": f"*{dtype}"} if bias else {})
        | {"offsets": "*i32"}
        | _SIZES,
        constexprs={"IS_INT4": is_int4, "GROUP": group, "WIDEN": False, **tile(itemsize), **_absent(bias)},
        num_warps=WARPS,
        num_stages=STAGES,
    )


def _absent(bias: bool) -> dict[str, Any]:
    return {} if bias else {"bias": None}


_ROWS = (("bf16", 2), ("fp16", 2), ("fp32", 4))
SPECIALISATIONS: list[Specialisation] = [
    *(_plain(dtype, itemsize, bias=False) for dtype, itemsize in _ROWS),
    *(
        _quantized(dtype, itemsize, group, is_int4=is_int4, bias=False)
        for dtype, itemsize in _ROWS
        for group, is_int4 in ((128, False), (32, True))
    ),
    # gpt-oss, as it was trained and in mxfp4.
    _plain("bf16", 2, bias=True),
    _quantized("bf16", 2, 32, is_int4=False, bias=True),
]
