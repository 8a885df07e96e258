"""Paged tree attention: the prefix is read once for all rows of a session and all query heads of a KV head.

A program owns a tile of a segment (ROWS rows times the query heads of one KV head, the M of its products) and one split
of the prefix; the last split takes the rows' own part too. Segments with one split are done; `_combine` joins the
others. Tiles and splits start at the segment's own first row and first key and have fixed sizes, so a row's bits do not
depend on what else is in the batch. Tiles of one segment are neighbours in the grid: they meet in the L2 cache.
With a window, the prefix is only what the segment's first row sees of it: its splits are counted from there.

Shapes: N rows, S segments, H query heads, G KV heads, C = 2 * G, D head size, K splits.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation
from draftwood_kernels.tree_attention.paged_layout import LONGEST_SPLIT_CHAIN, PagedLayout

SPLIT_KEYS = 1024
LOG2_E = 1.4426950408889634
_LOG2_E = tl.constexpr(LOG2_E)


def tree_attention_triton(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    layout: PagedLayout,
    *,
    split_keys: int = SPLIT_KEYS,
    sinks: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """queries [N, H, D], fresh [N, C, D] of the step's rows, pages [slots, C, D] of one layer -> a new [N, H, D].

    sinks float [H] and window: see `sink_attention`.
    """
    rows, heads, head_dim = queries.shape
    kv_heads, segments = fresh.shape[1] // 2, len(layout.prefix_lens)
    check(queries, fresh, pages, layout)
    out = torch.empty_like(queries)
    if not rows:
        return out
    span = layout.max_prefix_len if window is None else min(layout.max_prefix_len, window - 1)
    splits = max(1, -(-span // split_keys))
    partial_rows = layout.split_rows if splits > 1 else 0
    partial = torch.empty((splits, partial_rows, heads, head_dim), dtype=torch.float32, device=queries.device)
    logs = torch.empty((splits, partial_rows, heads), dtype=torch.float32, device=queries.device)
    constants, options = _constants(head_dim, heads // kv_heads, queries.dtype)
    # One more for each segment that ends inside a tile, rows of nobody being the last of them.
    tiles = rows // constants["ROWS"] + segments + 1
    _attend[(tiles, kv_heads, splits)](
        queries,
        fresh,
        pages,
        out,
        partial,
        logs,
        layout.row_offsets,
        layout.prefix_lens,
        layout.block_tables,
        layout.ancestors,
        layout.chains,
        layout.split_offsets,
        None if window is None else layout.depths,
        sinks,
        rows,
        layout.split_rows,
        segments,
        layout.block_tables.shape[1],
        layout.ancestors.shape[1],
        LOG2_E * head_dim**-0.5,
        KV_HEADS=kv_heads,
        PAGE_SIZE=layout.page_size,
        WINDOW=window,
        SPLIT=split_keys,
        LONGEST=LONGEST_SPLIT_CHAIN,
        # Triton's interpreter, the only way onto a CPU, takes bfloat16 in a product for the integers of its bits.
        WIDEN=queries.device.type == "cpu",
        **constants,
        **options,
    )
    if partial_rows:
        combine(partial, logs, out, layout, kv_heads, split_keys, window=window)
    return out


def combine(
    partial: torch.Tensor,
    logs: torch.Tensor,
    out: torch.Tensor,
    layout: PagedLayout,
    kv_heads: int,
    split_keys: int,
    depths: torch.Tensor | None = None,
    *,
    window: int | None = None,
) -> None:
    """partial [K, split rows, H, D], each normalised, and logs [K, split rows, H], base 2 of what they weigh -> out.

    A program takes the heads of one KV head. Splits are `split_keys` of a segment's prefix, or of what `window` leaves
    of it; with `depths`, of all positions of a row, its path included, and what has one split only is in `partial` as
    well.
    """
    _, rows, heads, head_dim = partial.shape
    _combine[(rows, kv_heads)](
        partial,
        logs,
        out,
        layout.row_offsets,
        layout.split_offsets,
        layout.prefix_lens,
        depths,
        rows,
        len(layout.prefix_lens),
        KV_HEADS=kv_heads,
        WINDOW=window,
        SPLIT=split_keys,
        **_combine_constants(head_dim, heads // kv_heads),
        num_warps=COMBINE_WARPS,
    )


def check(queries: torch.Tensor, fresh: torch.Tensor, pages: torch.Tensor, layout: PagedLayout) -> None:
    rows, heads, head_dim = queries.shape
    assert heads % (fresh.shape[1] // 2) == 0, f"{heads} query heads on {fresh.shape[1] // 2} KV heads"
    assert (rows, *pages.shape[1:]) == fresh.shape, f"{fresh.shape} of {rows} rows beside {pages.shape}"
    assert fresh.shape[2] == head_dim, f"head size {head_dim} beside {fresh.shape[2]}"
    assert queries.dtype == fresh.dtype == pages.dtype, f"{queries.dtype}, {fresh.dtype}, {pages.dtype}"
    assert all(tensor.is_contiguous() for tensor in (queries, fresh, pages)), "no strides"
    check_layout(rows, layout)


def check_layout(rows: int, layout: PagedLayout) -> None:
    segments = len(layout.prefix_lens)
    lengths = (layout.row_offsets, layout.prefix_lens, layout.split_offsets)
    tables = (*lengths, layout.block_tables, layout.chains, layout.depths)
    assert all(tensor.is_contiguous() for tensor in (layout.ancestors, *tables)), "no strides"
    assert all(table.dtype == torch.int32 for table in tables), "tables are int32"
    assert layout.ancestors.dtype == torch.int64, "ancestors are int64"
    assert len(layout.row_offsets) == segments + 1, f"{len(layout.row_offsets)} offsets of {segments} segments"
    assert len(layout.ancestors) == rows, f"ancestors of {len(layout.ancestors)} rows beside {rows}"
    assert len(layout.depths) == rows, f"depths of {len(layout.depths)} rows beside {rows}"
    assert layout.block_tables.shape[0] == len(layout.chains) == segments, f"tables of other than {segments} segments"


@triton.jit
def segment_of(
    row_offsets: tl.tensor, index: tl.tensor, segments: tl.tensor, ROWS: tl.constexpr, GAP: tl.constexpr
) -> tl.tensor:
    """The last segment whose first tile is not behind `index`; segment s starts at tile row_offsets[s] // ROWS + s, or
    without the gap at its row."""
    low = 0
    high = segments
    while low < high:
        middle = (low + high) // 2
        if tl.load(row_offsets + middle) // ROWS + middle * GAP <= index:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _span(prefix_len: tl.tensor, WINDOW: tl.constexpr) -> tl.tensor:
    """Keys at the end of the prefix that some row sees: the segment's first row sees most."""
    span = prefix_len
    if WINDOW is not None:
        span = tl.minimum(prefix_len, WINDOW - 1)
    return span


@triton.jit
def split_count(
    span: tl.tensor, rows: tl.tensor, chain: tl.tensor, SPLIT: tl.constexpr, LONGEST: tl.constexpr
) -> tl.tensor:
    unsplit = (chain != 0) & (rows > LONGEST)
    return tl.where(unsplit, 1, tl.maximum(1, tl.cdiv(span, SPLIT)))


@triton.jit
def slots_of(table: tl.tensor, key: tl.tensor, there: tl.tensor, PAGE_SIZE: tl.constexpr) -> tl.tensor:
    """Where the prefix's keys lie, by the segment's block table."""
    return tl.load(table + key // PAGE_SIZE, mask=there, other=0).to(tl.int64) * PAGE_SIZE + key % PAGE_SIZE


@triton.jit
def related(
    ancestors: tl.tensor,
    words: tl.tensor,
    first: tl.tensor,
    row: tl.tensor,
    live: tl.tensor,
    start: tl.tensor,
    key: tl.tensor,
    chain: tl.tensor,
) -> tl.tensor:
    """Which rows (of a segment that begins at `first`) see which of the segment's rows `key`, a block at `start`."""
    word = ancestors + (first + row).to(tl.int64) * words + start // 64
    bits = tl.load(word, mask=live & (chain == 0), other=0)
    seen = ((bits[:, None] >> (key % 64).to(tl.int64)[None, :]) & 1) != 0
    return seen | ((chain != 0) & (key[None, :] <= row[:, None]))


@triton.jit
def accumulate(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    visible: tl.tensor,
    scale: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    WIDEN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """One block of keys into the running softmax."""
    if WIDEN:
        queries, keys, values = queries.to(tl.float32), keys.to(tl.float32), values.to(tl.float32)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    peak, total, acc = weigh(scores, values, visible, peak, total, acc)
    return peak, total, acc


@triton.jit
def weigh(
    scores: tl.tensor, values: tl.tensor, visible: tl.tensor, peak: tl.tensor, total: tl.tensor, acc: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Values by their scores into the running softmax, in powers of two. `peak` is finite, so rows that see nothing of
    the block stay exactly as they were."""
    scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(peak - higher)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return higher, total, acc


@triton.jit
def _attend(
    queries: tl.tensor,
    fresh: tl.tensor,
    pages: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    logs: tl.tensor,
    row_offsets: tl.tensor,
    prefix_lens: tl.tensor,
    block_tables: tl.tensor,
    ancestors: tl.tensor,
    chains: tl.tensor,
    split_offsets: tl.tensor,
    depths: tl.tensor,
    sinks: tl.tensor,
    all_rows: tl.tensor,
    split_rows: tl.tensor,
    segments: tl.tensor,
    table_width: tl.tensor,
    words: tl.tensor,
    scale: tl.tensor,
    KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    LONGEST: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    segment = segment_of(row_offsets, tile, segments + 1, ROWS, 1)
    first = tl.load(row_offsets + segment)
    rows = tl.load(row_offsets + segment + 1, mask=segment < segments, other=all_rows) - first
    first_row = (tile - first // ROWS - segment) * ROWS
    if first_row >= rows:
        return

    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    row = first_row + m // GROUP
    live = (m < ROWS * GROUP) & (row < rows)
    # Of [N, H]; then of [N, H, D].
    head_row = (first + row).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + m % GROUP
    inside = d[None, :] < HEAD_DIM
    stored = live[:, None] & inside
    cell = head_row[:, None] * HEAD_DIM + d[None, :]
    if segment == segments:
        # Behind the last offset there are rows of nobody.
        tl.store(out + cell, tl.zeros([BLOCK_M, BLOCK_D], out.dtype.element_ty), mask=stored & (split == 0))
        return
    prefix_len = tl.load(prefix_lens + segment)
    chain = tl.load(chains + segment)
    span = _span(prefix_len, WINDOW)
    splits = split_count(span, rows, chain, SPLIT, LONGEST)
    if split >= splits:
        return

    q = tl.load(queries + cell, mask=stored, other=0.0)
    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    head_cell = kv_head * HEAD_DIM + d[None, :]
    last = split == splits - 1
    if sinks is not None:
        # A key without a value, of one split only.
        sink = tl.load(sinks + kv_head * GROUP + m % GROUP).to(tl.float32) * _LOG2_E
        peak = tl.where(last, tl.maximum(sink, peak), peak)
        total = tl.where(last, 1.0, total)

    begin = prefix_len - span + split * SPLIT
    end = tl.where(last, prefix_len, begin + SPLIT)
    own_begin = 0
    if WINDOW is not None:
        # Depths from which on the rows see. Blocks that none of them sees are left out, and the others stay where they
        # are, so that a row's bits do not depend on its tile. A row at depth d has d rows before it.
        horizon = tl.load(depths + first + row, mask=live, other=1 << 30) - WINDOW + 1
        nearest = tl.min(horizon, axis=0)
        begin += tl.maximum(prefix_len + nearest - begin, 0) // BLOCK_N * BLOCK_N
        own_begin = tl.maximum(nearest, 0) // BLOCK_N * BLOCK_N
    table = block_tables + segment.to(tl.int64) * table_width
    for start in range(begin, end, BLOCK_N):
        key = start + n
        there = key < end
        slot = slots_of(table, key, there, PAGE_SIZE)
        at = pages + slot[:, None] * (2 * KV_HEADS * HEAD_DIM) + head_cell
        loaded = there[:, None] & inside
        k = tl.load(at, mask=loaded, other=0.0)
        v = tl.load(at + KV_HEADS * HEAD_DIM, mask=loaded, other=0.0)
        visible = there[None, :]
        if WINDOW is not None:
            visible = visible & (key[None, :] - prefix_len >= horizon[:, None])
        peak, total, acc = accumulate(q, k, v, visible, scale, peak, total, acc, WIDEN)

    # A parent comes before its child: no row looks behind the tile's last one.
    end = tl.where(last, tl.minimum(first_row + ROWS, rows), 0)
    for start in range(own_begin, end, BLOCK_N):
        key = start + n
        there = key < end
        at = fresh + (first + key).to(tl.int64)[:, None] * (2 * KV_HEADS * HEAD_DIM) + head_cell
        loaded = there[:, None] & inside
        k = tl.load(at, mask=loaded, other=0.0)
        v = tl.load(at + KV_HEADS * HEAD_DIM, mask=loaded, other=0.0)
        visible = related(ancestors, words, first, row, live, start, key, chain) & there[None, :]
        if WINDOW is not None:
            depth = tl.load(depths + first + key, mask=there, other=0)
            visible = visible & (depth[None, :] >= horizon[:, None])
        peak, total, acc = accumulate(q, k, v, visible, scale, peak, total, acc, WIDEN)

    total = tl.where(total > 0, total, 1.0)
    acc = acc / total[:, None]
    if splits == 1:
        tl.store(out + cell, acc.to(out.dtype.element_ty), mask=stored)
    else:
        place = split.to(tl.int64) * split_rows + tl.load(split_offsets + segment) + row
        place = place * (KV_HEADS * GROUP) + kv_head * GROUP + m % GROUP
        tl.store(partial + place[:, None] * HEAD_DIM + d[None, :], acc, mask=stored)
        tl.store(logs + place, peak + tl.log2(total), mask=live)


@triton.jit
def join(
    peak: tl.tensor, total: tl.tensor, acc: tl.tensor, log: tl.tensor, part: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """One split into the sum of those before it. Products that are added to are named as such: left to the compiler,
    two kernels might round them differently."""
    higher = tl.maximum(peak, log)
    weight = tl.exp2(log - higher)
    shrink = tl.exp2(peak - higher)
    spread = weight[:, None] + tl.zeros_like(part)
    return higher, tl.fma(total, shrink, weight), tl.fma(part, spread, acc * shrink[:, None])


@triton.jit
def _combine(
    partial: tl.tensor,
    logs: tl.tensor,
    out: tl.tensor,
    row_offsets: tl.tensor,
    split_offsets: tl.tensor,
    prefix_lens: tl.tensor,
    depths: tl.tensor,
    split_rows: tl.tensor,
    segments: tl.tensor,
    KV_HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    segment = segment_of(split_offsets, row, segments, 1, 0)
    if row >= tl.load(split_offsets + segment + 1):
        return
    target = tl.load(row_offsets + segment) + row - tl.load(split_offsets + segment)
    if depths is None:
        splits = tl.cdiv(_span(tl.load(prefix_lens + segment), WINDOW), SPLIT)
        if splits < 2:
            return
    else:
        splits = tl.cdiv(tl.load(prefix_lens + segment) + tl.load(depths + target) + 1, SPLIT)

    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + g
    stored = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    peak = tl.full([BLOCK_G], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for split in range(0, splits):
        place = (tl.cast(split, tl.int64) * split_rows + row) * (KV_HEADS * GROUP) + head
        log = tl.load(logs + place, mask=g < GROUP, other=0.0)
        part = tl.load(partial + place[:, None] * HEAD_DIM + d[None, :], mask=stored, other=0.0)
        peak, total, acc = join(peak, total, acc, log, part)
    cell = (target.to(tl.int64) * (KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM + d[None, :]
    tl.store(out + cell, (acc / total[:, None]).to(out.dtype.element_ty), mask=stored)


COMBINE_WARPS = 4


def _constants(head_dim: int, group: int, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, int]]:
    """Tile and launch options, by the model alone and never by the batch."""
    block_m, block_n, warps, stages = _TILES[_block_d(head_dim), dtype.itemsize]
    assert group <= block_m, f"{group} query heads a KV head"
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_D": _block_d(head_dim),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "ROWS": block_m // group,
    }
    return constants, {"num_warps": warps, "num_stages": stages}


def _combine_constants(head_dim: int, group: int) -> dict[str, Any]:
    block_g = 1 << (group - 1).bit_length()
    return {"GROUP": group, "HEAD_DIM": head_dim, "BLOCK_D": _block_d(head_dim), "BLOCK_G": block_g}


def _block_d(head_dim: int) -> int:
    return max(64, 1 << (head_dim - 1).bit_length())


# (padded head size, bytes a number) -> rows and keys of a tile, warps, stages. Keys divide the 64 bits of a word.
_TILES = {
    (64, 2): (64, 32, 8, 3),
    (128, 2): (64, 64, 8, 3),
    (256, 2): (64, 32, 8, 2),
    (64, 4): (32, 32, 8, 2),
    (128, 4): (32, 16, 8, 2),
    (256, 4): (32, 16, 8, 2),
}
_ATTEND_POINTERS = ("queries", "fresh", "pages", "out")
_ATTEND_TABLES = ("row_offsets", "prefix_lens", "block_tables")
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def specialise_attend(
    dtype: str,
    head_dim: int,
    group: int,
    *,
    name: str = "tree_attention",
    sinks: bool = False,
    window: int | None = None,
) -> Specialisation:
    constants, options = _constants(head_dim, group, _TYPES[dtype])
    depths, sink_types = {} if window is None else {"depths": "*i32"}, {"sinks": f"*{dtype}"} if sinks else {}
    absent = dict.fromkeys({"depths", "sinks"} - {*depths, *sink_types})
    return Specialisation(
        kernel=_attend,
        name=f"{name} {dtype} head {head_dim} group {group}{'' if window is None else f' window {window}'}",
        signature=dict.fromkeys(_ATTEND_POINTERS, f"*{dtype}")
        | dict.fromkeys(("partial", "logs"), "*fp32")
        | dict.fromkeys(_ATTEND_TABLES, "*i32")
        | {"ancestors": "*i64", "chains": "*i32", "split_offsets": "*i32"}
        | depths
        | sink_types
        | dict.fromkeys(("all_rows", "split_rows", "segments", "table_width", "words"), "i32")
        | {"scale": "fp32"},
        constexprs={
            "KV_HEADS": 8,
            "PAGE_SIZE": 16,
            "WINDOW": window,
            "SPLIT": SPLIT_KEYS,
            "LONGEST": LONGEST_SPLIT_CHAIN,
        }
        | {"WIDEN": False, **constants, **absent},
        num_warps=options["num_warps"],
        num_stages=options["num_stages"],
    )


def specialise_combine(dtype: str, head_dim: int, group: int, *, paths: bool = False) -> Specialisation:
    absent: dict[str, Any] = {} if paths else {"depths": None}
    return Specialisation(
        kernel=_combine,
        name=f"tree_attention combine {dtype} head {head_dim} group {group}{' with paths' if paths else ''}",
        signature=dict.fromkeys(("partial", "logs"), "*fp32")
        | {"out": f"*{dtype}"}
        | dict.fromkeys(("row_offsets", "split_offsets", "prefix_lens", *(("depths",) if paths else ())), "*i32")
        | dict.fromkeys(("split_rows", "segments"), "i32"),
        constexprs={"KV_HEADS": 8, "WINDOW": None, "SPLIT": SPLIT_KEYS} | _combine_constants(head_dim, group) | absent,
        num_warps=COMBINE_WARPS,
        num_stages=2,
    )


SPECIALISATIONS: list[Specialisation] = [
    *(specialise_attend("bf16", head_dim, group) for head_dim in (64, 128, 256) for group in (1, 4, 8)),
    specialise_attend("fp16", 128, 4),
    *(specialise_attend("fp32", head_dim, 4) for head_dim in (64, 128, 256)),
    specialise_combine("bf16", 128, 4),
    specialise_combine("bf16", 128, 4, paths=True),
    specialise_combine("fp16", 256, 8),
    specialise_combine("fp32", 64, 1),
]
