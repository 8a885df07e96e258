"""Head norms, rotation and store in one pass over a step's fused rows: a program makes a block of heads of one row.

Shapes: N rows, H query heads, G KV heads, D head size.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.rotary.kernel import turn
from draftwood_kernels.specialisation import Specialisation

HEADS_A_PROGRAM, WARPS = 8, 4


def store_kv(
    fused: torch.Tensor, head_norm: torch.Tensor | None, eps: float, phases: torch.Tensor, fresh: torch.Tensor
) -> torch.Tensor:
    """Raises ValueError for other types, or where a row of `fused` or all of `fresh` is not dense."""
    rows, all_heads, head_dim = fused.shape
    kv_heads = fresh.shape[1] // 2
    heads = all_heads - 2 * kv_heads
    if fresh.shape != (rows, 2 * kv_heads, head_dim) or fresh.dtype != fused.dtype or not fresh.is_contiguous():
        raise ValueError(f"fresh: {fresh.dtype} {list(fresh.shape)} is not a dense place for {list(fused.shape)}")
    if fused.stride()[1:] != (head_dim, 1):
        raise ValueError(f"fused: heads of a row must lie dense, strides are {fused.stride()}")
    queries = torch.empty(rows, heads, head_dim, dtype=fused.dtype, device=fused.device)
    if rows:
        _store_kv_kernel[(rows, triton.cdiv(all_heads, HEADS_A_PROGRAM))](
            fused,
            None if head_norm is None else head_norm.contiguous(),
            torch.view_as_real(phases.contiguous()),
            queries,
            fresh,
            fused.stride(0),
            eps,
            heads,
            kv_heads,
            head_dim,
            BLOCK_H=HEADS_A_PROGRAM,
            BLOCK_D=triton.next_power_of_2(head_dim),
            num_warps=WARPS,
            num_stages=1,
        )
    return queries


@triton.jit
def _store_kv_kernel(
    fused,
    head_norm,
    phases,
    queries,
    fresh,
    row_stride,
    eps,
    heads,
    kv_heads,
    head_dim,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    column = tl.arange(0, BLOCK_D)
    whole = (column < head_dim)[None, :]
    is_value = (head >= heads + kv_heads)[:, None]
    inside = (head < heads + 2 * kv_heads)[:, None] & whole
    cell = head[:, None] * head_dim + column[None, :]
    values = tl.load(fused + row * row_stride + cell, mask=inside, other=0.0).to(tl.float32)
    ready = values
    if head_norm is not None:
        weight = tl.load(head_norm + cell, mask=inside & ~is_value, other=0.0).to(tl.float32)
        ready = ready / tl.sqrt(tl.sum(ready * ready, axis=1) / head_dim + eps)[:, None] * weight
    turns = tl.load(phases + row * head_dim + column, mask=column < head_dim, other=0.0)
    ready = tl.where(is_value, values, turn(ready, turns, BLOCK_H, BLOCK_D)).to(fresh.dtype.element_ty)
    is_query = (head < heads)[:, None]
    tl.store(queries + row * heads * head_dim + cell, ready, mask=inside & is_query)
    place = row * 2 * kv_heads * head_dim + cell - heads * head_dim
    tl.store(fresh + place, ready, mask=inside & ~is_query)


def _specialisation(dtype: str, head_dim: int, *, normed: bool) -> Specialisation:
    absent: dict[str, Any] = {} if normed else {"head_norm": None}
    pointers = ("fused", "queries", "fresh", *(("head_norm",) if normed else ()))
    return Specialisation(
        kernel=_store_kv_kernel,
        name=f"store_kv {dtype} D={head_dim}{'' if normed else ' no norm'}",
        signature=dict.fromkeys(pointers, f"*{dtype}")
        | {"phases": "*fp32", "eps": "fp32"}
        | dict.fromkeys(("row_stride", "heads", "kv_heads", "head_dim"), "i32"),
        constexprs={"BLOCK_H": HEADS_A_PROGRAM, "BLOCK_D": triton.next_power_of_2(head_dim)} | absent,
        num_warps=WARPS,
        num_stages=1,
    )


SPECIALISATIONS: list[Specialisation] = [
    *(_specialisation(dtype, size, normed=True) for dtype in ("bf16", "fp16", "fp32") for size in (64, 128, 256)),
    _specialisation("bf16", 128, normed=False),
    _specialisation("fp32", 64, normed=False),
]
