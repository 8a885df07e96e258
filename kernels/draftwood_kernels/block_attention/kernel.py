"""Draft blocks over paged contexts: a context is read once for all rows of a block and all query heads of a KV head.

A program owns a tile (some rows of a block times the query heads of one KV head, the M of its products) and one split
of that tile's context; the first split takes the block too, so it is never empty. Splits share out what there is, not
what there may be: a short session beside a long one is spread over as many programs.

Shapes: S sessions, B rows of a block, N = S * B, W pages of a table, H query heads, G KV heads, C = 2 * G, D head size,
K splits.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.block_attention.layout import BlockLayout, check_heads
from draftwood_kernels.specialisation import Specialisation
from draftwood_kernels.tree_attention.kernel import LOG2_E, accumulate, join

# Less of a context than this is not worth a split, and more programs than this fill no chip any better.
_SPLIT_KEYS, _WANTED_PROGRAMS = 512, 512
_COMBINE_ROWS, _COMBINE_WARPS = 16, 4
# (padded head size, bytes a number) -> rows and keys of a tile, warps, stages.
_TILES = {
    (64, 2): (64, 32, 8, 3),
    (128, 2): (64, 64, 8, 3),
    (256, 2): (64, 32, 8, 2),
    (64, 4): (32, 32, 8, 2),
    (128, 4): (32, 16, 8, 1),
    (256, 4): (32, 16, 8, 2),
}


def block_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    context: torch.Tensor,
    layout: BlockLayout,
    *,
    is_causal: bool,
    window: int | None,
    most_splits: int | None = None,
) -> torch.Tensor:
    """`most_splits` in the place of what the size of the launch suggests."""
    sessions, table_width = layout.block_tables.shape
    rows, heads, head_dim = queries.shape
    kv_heads, block_rows = fresh.shape[1] // 2, rows // sessions
    _check(queries, fresh, context, layout)
    constants, options = _constants(head_dim, heads // kv_heads, queries.dtype)
    tiles = sessions * triton.cdiv(block_rows, constants["ROWS"])
    splits = most_splits or _splits(table_width * layout.page_size, tiles * kv_heads)
    out = torch.empty_like(queries)
    # With one split nobody reads them.
    partial_rows = rows if splits > 1 else 0
    partial = queries.new_empty(splits, partial_rows, heads, head_dim, dtype=torch.float32)
    logs = queries.new_empty(splits, partial_rows, heads, dtype=torch.float32)
    _attend[(tiles, kv_heads, splits)](
        queries,
        fresh,
        context,
        out,
        partial,
        logs,
        layout.lengths,
        layout.block_tables,
        window,
        rows,
        block_rows,
        table_width,
        context.stride(0),
        LOG2_E * head_dim**-0.5,
        KV_HEADS=kv_heads,
        PAGE_SIZE=layout.page_size,
        CAUSAL=is_causal,
        SPLIT=splits > 1,
        # Triton's interpreter, the only way onto a CPU, takes bfloat16 in a product for the integers of its bits.
        WIDEN=queries.device.type == "cpu",
        **constants,
        **options,
    )
    if splits > 1:
        _combine[(triton.cdiv(rows * heads, _COMBINE_ROWS),)](
            partial,
            logs,
            out,
            splits,
            rows * heads,
            HEAD_DIM=head_dim,
            BLOCK_D=constants["BLOCK_D"],
            BLOCK_M=_COMBINE_ROWS,
            num_warps=_COMBINE_WARPS,
        )
    return out.flatten(1)


def _check(queries: torch.Tensor, fresh: torch.Tensor, context: torch.Tensor, layout: BlockLayout) -> None:
    rows, heads, head_dim = queries.shape
    sessions = len(layout.lengths)
    assert rows % sessions == 0, f"{rows} rows of {sessions} blocks"
    assert heads % (fresh.shape[1] // 2) == 0, f"{heads} query heads on {fresh.shape[1] // 2} KV heads"
    check_heads(heads, fresh.shape[1] // 2, head_dim)
    assert fresh.shape == (rows, *context.shape[1:]), f"{fresh.shape} of {rows} rows beside {context.shape}"
    assert queries.dtype == fresh.dtype == context.dtype, f"{queries.dtype}, {fresh.dtype}, {context.dtype}"
    assert context.stride()[1:] == (head_dim, 1), f"a slot has to be dense, strides are {context.stride()}"
    tables = layout.lengths, layout.block_tables
    assert all(tensor.is_contiguous() for tensor in (queries, fresh, *tables)), "no strides"
    assert all(table.dtype == torch.int32 for table in tables), "tables are int32"


def _splits(most_context: int, programs: int) -> int:
    return max(1, min(-(-most_context // _SPLIT_KEYS), _WANTED_PROGRAMS // programs))


def _constants(head_dim: int, group: int, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, int]]:
    """Tile and launch options, by the model alone and never by the batch."""
    block_d = max(64, triton.next_power_of_2(head_dim))
    block_m, block_n, warps, stages = _TILES[block_d, dtype.itemsize]
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "ROWS": block_m // group,
    }
    return constants, {"num_warps": warps, "num_stages": stages}


@triton.jit
def _attend(
    queries,
    fresh,
    context,
    out,
    partial,
    logs,
    lengths,
    block_tables,
    window,
    all_rows,
    block_rows,
    table_width,
    slot_stride,
    scale,
    KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Without a window, its place holds None."""
    tile, kv_head, split, splits = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    tiles = tl.cdiv(block_rows, ROWS)
    session = tile // tiles
    first_row = tile % tiles * ROWS
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    row = first_row + m // GROUP
    live = (m < ROWS * GROUP) & (row < block_rows)
    block = session.to(tl.int64) * block_rows
    # Of [N, H]; then of [N, H, D].
    head_row = (block + row) * (KV_HEADS * GROUP) + kv_head * GROUP + m % GROUP
    inside = d[None, :] < HEAD_DIM
    stored = live[:, None] & inside

    length = tl.load(lengths + session)
    low = length * 0
    if window is not None:
        low = tl.maximum(length + first_row - window + 1, 0)
    share = tl.cdiv(tl.cdiv(tl.maximum(length - low, 0), splits), BLOCK_N) * BLOCK_N
    begin = low + split * share
    end = tl.minimum(begin + share, length)
    if (split > 0) & (begin >= end):
        place = split.to(tl.int64) * all_rows * (KV_HEADS * GROUP) + head_row
        tl.store(logs + place, tl.full([BLOCK_M], float("-inf"), tl.float32), mask=live)
        return

    q = tl.load(queries + head_row[:, None] * HEAD_DIM + d[None, :], mask=stored, other=0.0)
    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    head_cell = kv_head * HEAD_DIM + d[None, :]
    table = block_tables + session.to(tl.int64) * table_width
    for start in range(begin, end, BLOCK_N):
        key = start + n
        there = key < end
        slot = tl.load(table + key // PAGE_SIZE, mask=there, other=0).to(tl.int64) * PAGE_SIZE + key % PAGE_SIZE
        at = context + slot[:, None] * slot_stride + head_cell
        loaded = there[:, None] & inside
        k = tl.load(at, mask=loaded, other=0.0)
        v = tl.load(at + KV_HEADS * HEAD_DIM, mask=loaded, other=0.0)
        visible = live[:, None] & there[None, :]
        if window is not None:
            visible = visible & (length + row[:, None] - key[None, :] < window)
        peak, total, acc = accumulate(q, k, v, visible, scale, peak, total, acc, WIDEN)

    for start in range(0, tl.where(split == 0, block_rows, 0), BLOCK_N):
        key = start + n
        there = key < block_rows
        at = fresh + (block + key)[:, None] * (2 * KV_HEADS * HEAD_DIM) + head_cell
        loaded = there[:, None] & inside
        k = tl.load(at, mask=loaded, other=0.0)
        v = tl.load(at + KV_HEADS * HEAD_DIM, mask=loaded, other=0.0)
        visible = live[:, None] & there[None, :]
        if CAUSAL:
            visible = visible & (key[None, :] <= row[:, None])
        if window is not None:
            visible = visible & (tl.abs(row[:, None] - key[None, :]) < window)
        peak, total, acc = accumulate(q, k, v, visible, scale, peak, total, acc, WIDEN)

    # A window may leave a row nothing of a split.
    total = tl.where(total > 0, total, 1.0)
    acc = acc / total[:, None]
    if SPLIT:
        place = split.to(tl.int64) * all_rows * (KV_HEADS * GROUP) + head_row
        tl.store(partial + place[:, None] * HEAD_DIM + d[None, :], acc, mask=stored)
        tl.store(logs + place, peak + tl.log2(total), mask=live)
    else:
        tl.store(out + head_row[:, None] * HEAD_DIM + d[None, :], acc.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _combine(
    partial, logs, out, splits, head_rows, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr
):
    """All splits of some heads of rows; empty ones have no part to be read."""
    head_row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = head_row < head_rows
    d = tl.arange(0, BLOCK_D)
    inside = (d < HEAD_DIM)[None, :]
    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for split in range(0, splits):
        place = tl.cast(split, tl.int64) * head_rows + head_row
        log = tl.load(logs + place, mask=live, other=float("-inf"))
        there = inside & (log > float("-inf"))[:, None]
        part = tl.load(partial + place[:, None] * HEAD_DIM + d[None, :], mask=there, other=0.0)
        peak, total, acc = join(peak, total, acc, log, part)
    total = tl.where(live, total, 1.0)
    cell = head_row[:, None] * HEAD_DIM + d[None, :]
    tl.store(out + cell, (acc / total[:, None]).to(out.dtype.element_ty), mask=live[:, None] & inside)


_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def _attention(
    dtype: str, head_dim: int, group: int, *, causal: bool = False, window: bool = False, split: bool = True
) -> Specialisation:
    constants, options = _constants(head_dim, group, _TYPES[dtype])
    kind = f"{' causal' if causal else ''}{' window' if window else ''}{'' if split else ' whole'}"
    absent: dict[str, Any] = {} if window else {"window": None}
    return Specialisation(
        kernel=_attend,
        name=f"block_attention {dtype} head {head_dim} group {group}{kind}",
        signature=dict.fromkeys(("queries", "fresh", "context", "out"), f"*{dtype}")
        | {"partial": "*fp32", "logs": "*fp32", "lengths": "*i32", "block_tables": "*i32"}
        | dict.fromkeys(("all_rows", "block_rows", "table_width", "slot_stride"), "i32")
        | ({"window": "i32"} if window else {})
        | {"scale": "fp32"},
        constexprs={"KV_HEADS": 8, "PAGE_SIZE": 16, "CAUSAL": causal, "SPLIT": split, "WIDEN": False}
        | constants
        | absent,
        num_warps=options["num_warps"],
        num_stages=options["num_stages"],
    )


def _combining(dtype: str, head_dim: int) -> Specialisation:
    return Specialisation(
        kernel=_combine,
        name=f"block_attention combine {dtype} head {head_dim}",
        signature={"partial": "*fp32", "logs": "*fp32", "out": f"*{dtype}"}
        | dict.fromkeys(("splits", "head_rows"), "i32"),
        constexprs={
            "HEAD_DIM": head_dim,
            "BLOCK_D": max(64, triton.next_power_of_2(head_dim)),
            "BLOCK_M": _COMBINE_ROWS,
        },
        num_warps=_COMBINE_WARPS,
        num_stages=2,
    )


SPECIALISATIONS: list[Specialisation] = [
    *(_attention("bf16", head_dim, group) for head_dim in (64, 128, 256) for group in (1, 4)),
    _attention("bf16", 128, 8),
    *(_attention("bf16", 128, 4, causal=causal, window=True) for causal in (False, True)),
    _attention("bf16", 128, 4, split=False),
    _attention("fp16", 128, 4),
    *(_attention("fp32", head_dim, 4) for head_dim in (64, 128, 256)),
    *(_combining(dtype, 128) for dtype in ("bf16", "fp32")),
]
