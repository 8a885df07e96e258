"""Accepted rows into the pages, all layers in one launch; how many rows are meant, the device knows.

Shapes: L layers, R scratch rows, S slots, W = C * D elements of a row.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation

BLOCK, WARPS = 1024, 4


def commit_kv(
    scratch: torch.Tensor,
    pages: torch.Tensor,
    rows: torch.Tensor,
    slots: torch.Tensor,
    count: torch.Tensor | None = None,
) -> None:
    """Raises ValueError for what a flat copy cannot move: other types, or rows that do not lie dense."""
    width = pages.shape[2] * pages.shape[3]
    if scratch.dtype != pages.dtype or scratch.shape[2:] != pages.shape[2:]:
        raise ValueError(
            f"scratch: {scratch.dtype} {list(scratch.shape)} does not fit pages {pages.dtype} {list(pages.shape)}"
        )
    for name, tensor in (("scratch", scratch), ("pages", pages)):
        if tensor.stride()[2:] != (tensor.shape[3], 1):
            raise ValueError(f"{name}: heads of a row must lie dense, strides are {tensor.stride()}")
    if not len(rows):
        return
    _commit_kv_kernel[(len(rows), pages.shape[0], triton.cdiv(width, BLOCK))](
        scratch,
        pages,
        rows.contiguous(),
        slots.contiguous(),
        count,
        scratch.stride(0),
        scratch.stride(1),
        pages.stride(0),
        pages.stride(1),
        width,
        BLOCK=BLOCK,
        num_warps=WARPS,
        num_stages=1,
    )


@triton.jit
def _commit_kv_kernel(
    scratch,
    pages,
    rows,
    slots,
    count,
    scratch_layer_stride,
    scratch_row_stride,
    pages_layer_stride,
    pages_slot_stride,
    width,
    BLOCK: tl.constexpr,
):
    index, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    if count is not None:
        # A row beyond the count may name any row and slot: neither is looked at.
        present = index < tl.load(count)
        inside = inside & present
        row, slot = tl.load(rows + index, mask=present, other=0), tl.load(slots + index, mask=present, other=0)
    else:
        row, slot = tl.load(rows + index), tl.load(slots + index)
    source = scratch + layer * scratch_layer_stride + row.to(tl.int64) * scratch_row_stride
    target = pages + layer * pages_layer_stride + slot.to(tl.int64) * pages_slot_stride
    tl.store(target + column, tl.load(source + column, mask=inside), mask=inside)


def _specialisation(dtype: str, *, counted: bool) -> Specialisation:
    constexprs: dict[str, Any] = {"BLOCK": BLOCK} if counted else {"BLOCK": BLOCK, "count": None}
    return Specialisation(
        kernel=_commit_kv_kernel,
        name=f"commit_kv {dtype}{' counted' if counted else ''}",
        signature={"scratch": f"*{dtype}", "pages": f"*{dtype}", "rows": "*i64", "slots": "*i64"}
        | ({"count": "*i32"} if counted else {})
        | {"scratch_layer_stride": "i64", "scratch_row_stride": "i32"}
        | {"pages_layer_stride": "i64", "pages_slot_stride": "i32", "width": "i32"},
        constexprs=constexprs,
        num_warps=WARPS,
        num_stages=1,
    )


SPECIALISATIONS: list[Specialisation] = [
    _specialisation(dtype, counted=counted) for dtype in ("bf16", "fp16", "fp32") for counted in (True, False)
]
