"""Rotation of heads in pairs: a program turns a block of heads of one row, whose phases it loads once.

Shapes: N rows, H heads, D head size.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation

HEADS_A_PROGRAM = 8


def rotate_pairs(heads: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """phases complex64 [N, 1, D / 2]."""
    heads_NHD = heads if heads.stride(-1) == 1 else heads.contiguous()
    rows, count, head_dim = heads_NHD.shape
    phases_ND = torch.view_as_real(phases.contiguous())
    out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    if out.numel():
        _rotate_pairs_kernel[(rows, triton.cdiv(count, HEADS_A_PROGRAM))](
            heads_NHD,
            phases_ND,
            out,
            heads_NHD.stride(0),
            heads_NHD.stride(1),
            count,
            head_dim,
            BLOCK_H=HEADS_A_PROGRAM,
            BLOCK_D=triton.next_power_of_2(head_dim),
            num_warps=4,
            num_stages=1,
        )
    return out


@triton.jit
def _rotate_pairs_kernel(
    heads,
    phases,
    out,
    row_stride,
    head_stride,
    count,
    head_dim,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    column = tl.arange(0, BLOCK_D)
    inside = (head < count)[:, None] & (column < head_dim)[None, :]
    turns = tl.load(phases + row * head_dim + column, mask=column < head_dim, other=0.0)
    offsets = row * row_stride + head[:, None] * head_stride + column[None, :]
    turned = turn(tl.load(heads + offsets, mask=inside, other=0.0).to(tl.float32), turns, BLOCK_H, BLOCK_D)
    out_offsets = (row * count + head[:, None]) * head_dim + column[None, :]
    tl.store(out + out_offsets, turned.to(out.dtype.element_ty), mask=inside)


@triton.jit
def turn(pairs, turns, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr):
    """pairs float32 [BLOCK_H, BLOCK_D], all turned by turns [BLOCK_D]: cosine and sine of each pair."""
    cos, sin = tl.split(tl.reshape(turns, (1, BLOCK_D // 2, 2)))
    real, imaginary = tl.split(tl.reshape(pairs, (BLOCK_H, BLOCK_D // 2, 2)))
    turned = tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos)
    return tl.reshape(turned, (BLOCK_H, BLOCK_D))


def _specialisation(dtype: str, head_dim: int) -> Specialisation:
    return Specialisation(
        kernel=_rotate_pairs_kernel,
        name=f"rotate_pairs {dtype} D={head_dim}",
        signature={"heads": f"*{dtype}", "phases": "*fp32", "out": f"*{dtype}"}
        | dict.fromkeys(["row_stride", "head_stride", "count", "head_dim"], "i32"),
        constexprs={"BLOCK_H": HEADS_A_PROGRAM, "BLOCK_D": triton.next_power_of_2(head_dim)},
        num_warps=4,
        num_stages=1,
    )


SPECIALISATIONS: list[Specialisation] = [
    _specialisation(dtype, size) for dtype in ("bf16", "fp16", "fp32") for size in (64, 128, 256)
]
