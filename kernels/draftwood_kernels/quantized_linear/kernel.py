"""A product with a weight of codes: pieces of a group are products of codes, scaled as they are added up.

Codes (4 bits, or fp8) are exact in every 16-bit float, so nothing is rounded but the sums. Tiles have fixed sizes and
start at row 0: a row's bits do not depend on what else is in the batch. fp8 is decoded from its bits, because not every
chip here has the conversion.

Shapes: N rows, I inputs, O outputs.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator"

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation

CODES_A_WORD = 8
WARPS, STAGES = 4, 3
_SMALLEST_GROUP = 32


def quantized_linear(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """Raises ValueError for groups that are no power of two of at least 32 inputs."""
    inputs, is_int4 = x.shape[1], codes.dtype == torch.int32
    check_codes(inputs, codes, scales, group)
    rows = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(len(x), len(codes), dtype=x.dtype, device=x.device)
    sizes = tile(x.dtype.itemsize)
    if out.numel():
        _quantized_linear_kernel[(triton.cdiv(len(codes), sizes["BLOCK_N"]), triton.cdiv(len(x), sizes["BLOCK_M"]))](
            rows,
            codes if is_int4 else codes.view(torch.uint8),
            scales,
            out,
            len(rows),
            inputs,
            len(codes),
            rows.stride(0),
            IS_INT4=is_int4,
            GROUP=group,
            # The interpreter takes bfloat16 in a product for the integers of its bits.
            WIDEN=x.device.type == "cpu",
            **sizes,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    return out


def tile(itemsize: int) -> dict[str, int]:
    """Rows, outputs and inputs of a program's tile, by the type of rows alone. A group has whole tiles of inputs."""
    rows, outputs, inputs = (32, 64, 32) if itemsize == 2 else (16, 32, 16)
    return {"BLOCK_M": rows, "BLOCK_N": outputs, "BLOCK_K": inputs}


def check_codes(inputs: int, codes: torch.Tensor, scales: torch.Tensor, group: int) -> None:
    if group < _SMALLEST_GROUP or group & (group - 1):
        raise ValueError(f"group: {group} is not a power of two from {_SMALLEST_GROUP} on")
    width = codes.shape[-1] * (CODES_A_WORD if codes.dtype == torch.int32 else 1)
    assert width == inputs, f"codes of {width} inputs beside {inputs}"
    assert scales.shape == (*codes.shape[:-1], -(-inputs // group)), f"scales {scales.shape} beside {codes.shape}"
    assert scales.dtype == torch.float32, f"scales are {scales.dtype}"
    assert codes.is_contiguous(), "no strides of codes"
    assert scales.is_contiguous(), "no strides of scales"


@triton.jit
def _codes_tile(
    codes: tl.tensor,
    output: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    first: tl.tensor,
    IS_INT4: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """The codes of inputs first … first + BLOCK_K - 1 as float16 [BLOCK_N, BLOCK_K]; zeros outside of the weight."""
    there = (output < outputs)[:, None]
    if IS_INT4:
        word = first // 8 + tl.arange(0, BLOCK_K // 8)
        at = output.to(tl.int64)[:, None] * (inputs // 8) + word[None, :]
        # Eight codes of zero.
        words = tl.load(codes + at, mask=there & (word < inputs // 8)[None, :], other=-2004318072)
        shifts = tl.arange(0, 8) * 4
        numbers = ((words[:, :, None] >> shifts[None, None, :]) & 0xF) - 8
        return tl.reshape(numbers, (BLOCK_N, BLOCK_K)).to(tl.float16)
    column = first + tl.arange(0, BLOCK_K)
    at = output.to(tl.int64)[:, None] * inputs + column[None, :]
    bits = tl.load(codes + at, mask=there & (column < inputs)[None, :], other=0).to(tl.int16)
    # Sign, exponent and mantissa moved to where float16 has them; its exponent's bias is larger by 8.
    halves = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return halves.to(tl.float16, bitcast=True) * 256.0


@triton.jit
def scaled_product(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    row: tl.tensor,
    live: tl.tensor,
    output: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    x_row_stride: tl.tensor,
    IS_INT4: tl.constexpr,
    GROUP: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """Rows `row` of x where `live`, with the weight's outputs `output` -> float32 [BLOCK_M, BLOCK_N]."""
    scales_row = scales + output.to(tl.int64) * tl.cdiv(inputs, GROUP)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, inputs, BLOCK_K):
        column = first + tl.arange(0, BLOCK_K)
        at = row.to(tl.int64)[:, None] * x_row_stride + column[None, :]
        tile = tl.load(x + at, mask=live[:, None] & (column < inputs)[None, :], other=0.0)
        weight = _codes_tile(codes, output, outputs, inputs, first, IS_INT4, BLOCK_N, BLOCK_K).to(tile.dtype)
        if WIDEN:
            tile, weight = tile.to(tl.float32), weight.to(tl.float32)
        product = tl.dot(tile, tl.trans(weight), input_precision="ieee")
        acc += product * tl.load(scales_row + first // GROUP, mask=output < outputs, other=0.0)[None, :]
    return acc


@triton.jit
def _quantized_linear_kernel(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    x_row_stride: tl.tensor,
    IS_INT4: tl.constexpr,
    GROUP: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    acc = scaled_product(
        x,
        codes,
        scales,
        row,
        row < rows,
        output,
        outputs,
        inputs,
        x_row_stride,
        IS_INT4,
        GROUP,
        WIDEN,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    at = row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (output < outputs)[None, :])


def _specialisation(dtype: str, itemsize: int, group: int, *, is_int4: bool) -> Specialisation:
    return Specialisation(
        kernel=_quantized_linear_kernel,
        name=f"{'int4' if is_int4 else 'fp8'} group {group}, {dtype} rows",
        signature={"x": f"*{dtype}", "codes": "*i32" if is_int4 else "*u8", "scales": "*fp32", "out": f"*{dtype}"}
        | dict.fromkeys(("rows", "inputs", "outputs", "x_row_stride"), "i32"),
        constexprs={"IS_INT4": is_int4, "GROUP": group, "WIDEN": False, **tile(itemsize)},
        num_warps=WARPS,
        num_stages=STAGES,
    )


SPECIALISATIONS: list[Specialisation] = [
    _specialisation(dtype, itemsize, group, is_int4=is_int4)
    for dtype, itemsize in (("bf16", 2), ("fp16", 2), ("fp32", 4))
    for group, is_int4 in ((128, False), (32, True))
]
