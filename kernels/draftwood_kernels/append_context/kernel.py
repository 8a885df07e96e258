"""Context rows of all draft layers in one launch: a program makes the keys and values of a block of heads of one row
and layer. How many rows are meant, where they start and on which pages, the device knows.

Shapes: N rows, S sessions, L layers, G KV heads, D head size.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl

from draftwood_kernels.append_context.rows import ContextRows
from draftwood_kernels.rotary.kernel import turn
from draftwood_kernels.specialisation import Specialisation

HEADS_A_PROGRAM, WARPS = 8, 4


def append_context(
    projected: torch.Tensor,
    k_norm: torch.Tensor,
    eps: float,
    phase_table: torch.Tensor,
    rows: ContextRows,
    cache: torch.Tensor,
) -> None:
    """Raises ValueError where features or cache are not dense, or of unlike shapes."""
    count, layers, _, kv_heads, head_dim = projected.shape
    if projected.shape[1:] != cache.shape[1:]:
        raise ValueError(f"projected: {list(projected.shape)} does not fit cache {list(cache.shape)}")
    for name, tensor in (("projected", projected), ("cache", cache)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: has to be dense, strides are {tensor.stride()}")
    sessions, pages = rows.block_tables.shape
    if not count or not sessions:
        return
    _append_context_kernel[(count, layers, triton.cdiv(kv_heads, HEADS_A_PROGRAM))](
        projected,
        k_norm.contiguous(),
        torch.view_as_real(phase_table.contiguous()),
        cache,
        rows.row_offsets,
        rows.lengths,
        rows.starts,
        rows.block_tables.contiguous(),
        sessions,
        pages,
        rows.page_size,
        eps,
        kv_heads,
        head_dim,
        BLOCK_H=HEADS_A_PROGRAM,
        BLOCK_D=triton.next_power_of_2(head_dim),
        num_warps=WARPS,
        num_stages=1,
    )


@triton.jit
def _append_context_kernel(
    projected,
    k_norm,
    phases,
    cache,
    row_offsets,
    lengths,
    starts,
    block_tables,
    sessions,
    pages,
    page_size,
    eps,
    kv_heads,
    head_dim,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row, layer, layers = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    session = tl.full((), 0, tl.int32)
    high = sessions
    while high - session > 1:
        middle = (session + high) // 2
        if tl.load(row_offsets + middle) <= row:
            session = middle
        else:
            high = middle
    step = row - tl.load(row_offsets + session)
    if step < 0 or step >= tl.load(lengths + session) or row >= tl.load(row_offsets + session + 1):
        return
    position = tl.load(starts + session) + step
    page = tl.load(block_tables + session.to(tl.int64) * pages + position // page_size)
    slot = page.to(tl.int64) * page_size + position % page_size

    head = tl.program_id(2) * BLOCK_H + tl.arange(0, BLOCK_H)
    column = tl.arange(0, BLOCK_D)
    inside = (head < kv_heads)[:, None] & (column < head_dim)[None, :]
    cell = head[:, None] * head_dim + column[None, :]
    source = projected + (row.to(tl.int64) * layers + layer) * 2 * kv_heads * head_dim + cell
    target = cache + (slot * layers + layer) * 2 * kv_heads * head_dim + cell
    keys = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    values = tl.load(source + kv_heads * head_dim, mask=inside, other=0.0)
    weight = tl.load(k_norm + layer * head_dim + column, mask=column < head_dim, other=0.0).to(tl.float32)
    keys = keys / tl.sqrt(tl.sum(keys * keys, axis=1) / head_dim + eps)[:, None] * weight[None, :]
    turns = tl.load(phases + position.to(tl.int64) * head_dim + column, mask=column < head_dim, other=0.0)
    keys = turn(keys, turns, BLOCK_H, BLOCK_D)
    tl.store(target, keys.to(cache.dtype.element_ty), mask=inside)
    tl.store(target + kv_heads * head_dim, values.to(cache.dtype.element_ty), mask=inside)


SPECIALISATIONS: list[Specialisation] = [
    Specialisation(
        kernel=_append_context_kernel,
        name=f"append_context {dtype} D={size}",
        signature=dict.fromkeys(("projected", "k_norm", "cache"), f"*{dtype}")
        | {"phases": "*fp32", "eps": "fp32"}
        | dict.fromkeys(("row_offsets", "lengths", "starts", "block_tables"), "*i32")
        | dict.fromkeys(("sessions", "pages", "page_size", "kv_heads", "head_dim"), "i32"),
        constexprs={"BLOCK_H": HEADS_A_PROGRAM, "BLOCK_D": triton.next_power_of_2(size)},
        num_warps=WARPS,
        num_stages=1,
    )
    for dtype in ("bf16", "fp16", "fp32")
    for size in (64, 128, 256)
]
