"""A linear whose rows do not know of each other: tiles and splits follow from the weight's shape alone.

A row's result is a sum over splits of the inputs, each a sum over blocks in order; how many rows there are decides only
how many programs run. A step has few rows and costs what reading the weight costs, so one tile serves all numbers.

Shapes: M rows, N outputs, K inputs, P splits.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation

# About the number of programs that fill a large chip; a weight with fewer tiles of outputs is split over its inputs.
_WANTED_PROGRAMS = 128
# Bounds the partial sums: more rows go in turns, which changes none of them.
_MOST_ROWS = 1024
_JOIN_BLOCK, _JOIN_WARPS = 1024, 4
# Bytes a number -> rows, outputs and inputs of a tile, warps, stages.
_TILES = {2: (64, 64, 64, 8, 4), 4: (32, 32, 32, 4, 2)}


def row_invariant_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [M, K] @ weight [N, K] transposed + bias [N] -> a new [M, N] of x's type; sums are float32.

    Raises ValueError for unlike types or sizes, or a weight that is not dense.
    """
    if x.dtype != weight.dtype or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x: {x.dtype} {list(x.shape)} does not fit weight {weight.dtype} {list(weight.shape)}")
    if not weight.is_contiguous():
        raise ValueError(f"weight: has to be dense, strides are {weight.stride()}")
    x = x.contiguous()
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    for first in range(0, len(x), _MOST_ROWS):
        rows = slice(first, first + _MOST_ROWS)
        _launch(x[rows], weight, bias, out[rows])
    return out


def _launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    rows, (outputs, inputs) = len(x), weight.shape
    block_m, block_n, block_k, warps, stages = _TILES[x.element_size()]
    splits, split_inputs = _splits(outputs, inputs, block_n, block_k)
    partial = torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device) if splits > 1 else None
    grid = (triton.cdiv(rows, block_m), triton.cdiv(outputs, block_n), splits)
    _linear_kernel[grid](
        x,
        weight,
        None if partial is not None else bias,
        out if partial is None else partial,
        rows,
        outputs,
        INPUTS=inputs,
        SPLIT=split_inputs,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        # Triton's interpreter, the only way onto a CPU, takes bfloat16 in a product for the integers of its bits.
        WIDEN=x.device.type == "cpu",
        num_warps=warps,
        num_stages=stages,
    )
    if partial is not None:
        _join_kernel[(rows, triton.cdiv(outputs, _JOIN_BLOCK))](
            partial, bias, out, outputs, splits, BLOCK=_JOIN_BLOCK, num_warps=_JOIN_WARPS
        )


def _splits(outputs: int, inputs: int, block_n: int, block_k: int) -> tuple[int, int]:
    """How many splits, and inputs of each: enough to make the wanted programs, but none of less than 4 blocks."""
    blocks = triton.cdiv(inputs, block_k)
    wanted = min(triton.cdiv(_WANTED_PROGRAMS, triton.cdiv(outputs, block_n)), max(blocks // 4, 1))
    a_split = triton.cdiv(blocks, wanted)
    return triton.cdiv(blocks, a_split), a_split * block_k


@triton.jit
def _linear_kernel(
    x,
    weight,
    bias,
    out,
    rows,
    outputs,
    INPUTS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile of one split; neighbours in the grid read the same weights."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k = tl.arange(0, BLOCK_K)
    x_rows = x + row.to(tl.int64)[:, None] * INPUTS
    weight_rows = weight + output.to(tl.int64)[None, :] * INPUTS
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, INPUTS), BLOCK_K):
        column = first + k
        wanted, made = (row < rows)[:, None], (output < outputs)[None, :]
        # A mask along the inputs would forbid wide loads: only where a block ends outside.
        if INPUTS % BLOCK_K != 0:
            wanted, made = wanted & (column < INPUTS)[None, :], made & (column < INPUTS)[:, None]
        a = tl.load(x_rows + column[None, :], mask=wanted, other=0.0)
        b = tl.load(weight_rows + column[:, None], mask=made, other=0.0)
        if WIDEN:
            a, b = a.to(tl.float32), b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    if bias is not None:
        acc += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    cell = (split.to(tl.int64) * rows + row)[:, None] * outputs + output[None, :]
    tl.store(out + cell, acc.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (output < outputs)[None, :])


@triton.jit
def _join_kernel(partial, bias, out, outputs, splits, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = output < outputs
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(0, splits):
        place = (tl.cast(split, tl.int64) * tl.num_programs(0) + row) * outputs + output
        total += tl.load(partial + place, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * outputs + output, total.to(out.dtype.element_ty), mask=inside)


_DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}


def _product(dtype: str, inputs: int, *, split: bool, bias: bool) -> Specialisation:
    block_m, block_n, block_k, warps, stages = _TILES[_DTYPES[dtype]]
    absent: dict[str, Any] = {} if bias else {"bias": None}
    return Specialisation(
        kernel=_linear_kernel,
        name=f"{dtype} K={inputs}{' split' if split else ''}{' bias' if bias else ''}",
        signature=dict.fromkeys(("x", "weight", *(("bias",) if bias else ())), f"*{dtype}")
        | {"out": "*fp32" if split else f"*{dtype}"}
        | dict.fromkeys(("rows", "outputs"), "i32"),
        constexprs={"INPUTS": inputs, "SPLIT": 1024 if split else triton.cdiv(inputs, block_k) * block_k}
        | {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "WIDEN": False}
        | absent,
        num_warps=warps,
        num_stages=stages,
    )


def _joining(dtype: str, *, bias: bool) -> Specialisation:
    absent: dict[str, Any] = {} if bias else {"bias": None}
    return Specialisation(
        kernel=_join_kernel,
        name=f"join {dtype}{' bias' if bias else ''}",
        signature={"partial": "*fp32", "out": f"*{dtype}", "outputs": "i32", "splits": "i32"}
        | ({"bias": f"*{dtype}"} if bias else {}),
        constexprs={"BLOCK": _JOIN_BLOCK} | absent,
        num_warps=_JOIN_WARPS,
        num_stages=1,
    )


SPECIALISATIONS: list[Specialisation] = [
    *(_product(dtype, 4096, split=True, bias=False) for dtype in _DTYPES),
    *(_product(dtype, 4096, split=False, bias=bias) for dtype in _DTYPES for bias in (False, True)),
    *(_product(dtype, 1000, split=False, bias=False) for dtype in _DTYPES),
    *(_joining(dtype, bias=bias) for dtype in _DTYPES for bias in (False, True)),
]
