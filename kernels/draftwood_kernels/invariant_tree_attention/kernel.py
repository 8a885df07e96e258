"""Paged tree attention by absolute position.

A row sees the keys of positions 0 … its own. Blocks of keys and splits begin at multiples of their size, wherever the
prefix ends, and a row's softmax runs over them in that order: so the arithmetic of a row is a function of its position
and its keys alone. Whole blocks of the prefix, and all blocks of a chain, serve every row of a tile at once. From the
block on where a tree's prefix ends, each row has keys of its own: those of its path, gathered as if they were in the
pages. They take a product of the same shape each, in which the tile's other rows see nothing, which leaves them as they
are, bit for bit. That is what this mode costs: about a block a row more.

Shapes: N rows, S segments, H query heads, G KV heads, C = 2 * G, D head size, P positions of the longest path.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation
from draftwood_kernels.tree_attention.kernel import LOG2_E, SPLIT_KEYS, accumulate, check, combine, join, segment_of
from draftwood_kernels.tree_attention.paged_layout import LONGEST_SPLIT_CHAIN, PagedLayout


def invariant_tree_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    layout: PagedLayout,
    *,
    split_keys: int = SPLIT_KEYS,
) -> torch.Tensor:
    """queries [N, H, D], fresh [N, C, D] of the step's rows, pages [slots, C, D] of one layer -> a new [N, H, D].

    Bits are comparable between calls with the same `split_keys`, a multiple of a block.
    """
    rows, heads, head_dim = queries.shape
    kv_heads, segments = fresh.shape[1] // 2, len(layout.prefix_lens)
    check(queries, fresh, pages, layout)
    out = torch.empty_like(queries)
    if not rows:
        return out
    constants, options = _constants(head_dim, heads // kv_heads, queries.dtype)
    assert split_keys % constants["BLOCK_N"] == 0, f"split_keys: {split_keys} cuts a block of {constants['BLOCK_N']}"
    splits = max(1, -(-(layout.max_prefix_len + layout.max_depth) // split_keys))
    partial = queries.new_empty(splits, layout.split_rows, heads, head_dim, dtype=torch.float32)
    logs = queries.new_empty(splits, layout.split_rows, heads, dtype=torch.float32)
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
        layout.paths,
        layout.depths,
        layout.chains,
        layout.split_offsets,
        rows,
        layout.split_rows,
        segments,
        layout.block_tables.shape[1],
        layout.paths.shape[1],
        LOG2_E * head_dim**-0.5,
        KV_HEADS=kv_heads,
        PAGE_SIZE=layout.page_size,
        SPLIT=split_keys,
        LONGEST=LONGEST_SPLIT_CHAIN,
        # Triton's interpreter, the only way onto a CPU, takes bfloat16 in a product for the integers of its bits.
        WIDEN=queries.device.type == "cpu",
        **constants,
        **options,
    )
    if layout.split_rows:
        combine(partial, logs, out, layout, kv_heads, split_keys, layout.depths)
    return out


@triton.jit
def _attend(
    queries,
    fresh,
    pages,
    out,
    partial,
    logs,
    row_offsets,
    prefix_lens,
    block_tables,
    paths,
    depths,
    chains,
    split_offsets,
    all_rows,
    split_rows,
    segments,
    table_width,
    path_width,
    scale,
    KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    LONGEST: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
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
    # Of [N, H, D].
    cell = ((first + row).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + m % GROUP) * HEAD_DIM
    cell = cell[:, None] + d[None, :]
    stored = live[:, None] & (d[None, :] < HEAD_DIM)
    if segment == segments:
        # Behind the last offset there are rows of nobody.
        nobody = stored & (tl.program_id(2) == 0)
        tl.store(out + cell, tl.zeros([BLOCK_M, BLOCK_D], out.dtype.element_ty), mask=nobody)
        return

    prefix_len = tl.load(prefix_lens + segment)
    is_chain = tl.load(chains + segment) != 0
    position = prefix_len + tl.load(depths + first + row, mask=live, other=-1 - prefix_len)
    end = tl.max(position, axis=0) + 1
    # A long chunk keeps its splits to itself and joins them here, as `combine` would.
    whole = is_chain & (rows > LONGEST)
    split = tl.where(whole, 0, tl.program_id(2))
    last_split = tl.where(whole, tl.cdiv(end, SPLIT), split + 1)
    if (split * SPLIT >= end) | (whole & (tl.program_id(2) > 0)):
        return

    q = tl.load(queries + cell, mask=stored, other=0.0)
    head_cell = kv_head * HEAD_DIM + d[None, :]
    table = block_tables + segment.to(tl.int64) * table_width
    tile_rows = tl.minimum(ROWS, rows - first_row)
    place = ((tl.load(split_offsets + segment) + row).to(tl.int64)) * (KV_HEADS * GROUP) + kv_head * GROUP + m % GROUP
    joined_peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    joined_total = tl.zeros([BLOCK_M], tl.float32)
    joined = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for index in range(split, last_split):
        begin = index * SPLIT
        stop = tl.minimum(begin + SPLIT, end)
        shared_stop = tl.where(is_chain, stop, tl.minimum(tl.maximum(prefix_len // BLOCK_N * BLOCK_N, begin), stop))
        shared = tl.cdiv(shared_stop - begin, BLOCK_N)
        own = tl.cdiv(stop - shared_stop, BLOCK_N)
        peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for item in range(0, shared + own * tile_rows):
            is_own = item >= shared
            owner = tl.where(is_own, (item - shared) // tl.maximum(own, 1), 0)
            block = tl.where(is_own, shared + (item - shared) % tl.maximum(own, 1), item)
            key = begin + block * BLOCK_N + n
            owner_row = first + first_row + owner
            owner_end = tl.where(is_own, prefix_len + tl.load(depths + owner_row) + 1, stop)
            there = (key < stop) & (key < owner_end)
            paged = key < prefix_len
            page = tl.load(table + key // PAGE_SIZE, mask=there & paged, other=0)
            slot = page.to(tl.int64) * PAGE_SIZE + key % PAGE_SIZE
            path = paths + owner_row.to(tl.int64) * path_width + key - prefix_len
            node = tl.load(path, mask=there & ~paged & is_own, other=0)
            source = (first + tl.where(is_own, node, key - prefix_len)).to(tl.int64)
            at = tl.where(paged, pages + slot * (2 * KV_HEADS * HEAD_DIM), fresh + source * (2 * KV_HEADS * HEAD_DIM))[
                :, None
            ]
            loaded = there[:, None] & (d[None, :] < HEAD_DIM)
            k = tl.load(at + head_cell, mask=loaded, other=0.0)
            v = tl.load(at + head_cell + KV_HEADS * HEAD_DIM, mask=loaded, other=0.0)
            sees = live & (is_own == 0) | live & (m // GROUP == owner)
            visible = sees[:, None] & there[None, :] & (key[None, :] <= position[:, None])
            peak, total, acc = accumulate(q, k, v, visible, scale, peak, total, acc, WIDEN)
        total = tl.where(total > 0, total, 1.0)
        acc = acc / total[:, None]
        log = peak + tl.log2(total)
        before = tl.cast(index, tl.int64) * split_rows * (KV_HEADS * GROUP)
        tl.store(partial + (before + place)[:, None] * HEAD_DIM + d[None, :], acc, mask=stored & (whole == 0))
        tl.store(logs + before + place, log, mask=live & (whole == 0))
        joined_peak, joined_total, joined = join(joined_peak, joined_total, joined, log, acc)
    joined_total = tl.where(live, joined_total, 1.0)
    tl.store(out + cell, (joined / joined_total[:, None]).to(out.dtype.element_ty), mask=stored & whole)


# (padded head size, bytes a number) -> rows and keys of a tile, warps, stages.
_TILES = {
    (64, 2): (32, 64, 8, 2),
    (128, 2): (32, 32, 4, 2),
    (256, 2): (32, 32, 8, 2),
    (64, 4): (16, 32, 4, 2),
    (128, 4): (16, 16, 8, 2),
    (256, 4): (16, 16, 16, 2),
}


def _constants(head_dim: int, group: int, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, int]]:
    """Tile and launch options, by the model alone and never by the batch."""
    block_d = max(64, 1 << (head_dim - 1).bit_length())
    block_m, block_n, warps, stages = _TILES[block_d, dtype.itemsize]
    assert group <= block_m, f"{group} query heads a KV head"
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_D": block_d,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "ROWS": block_m // group,
    }
    return constants, {"num_warps": warps, "num_stages": stages}


_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_TABLES = ("row_offsets", "prefix_lens", "block_tables", "paths", "depths", "chains", "split_offsets")
_SIZES = ("all_rows", "split_rows", "segments", "table_width", "path_width")


def _specialisation(dtype: str, head_dim: int, group: int) -> Specialisation:
    constants, options = _constants(head_dim, group, _TYPES[dtype])
    return Specialisation(
        kernel=_attend,
        name=f"{dtype} head {head_dim} group {group}",
        signature=dict.fromkeys(("queries", "fresh", "pages", "out"), f"*{dtype}")
        | dict.fromkeys(("partial", "logs"), "*fp32")
        | dict.fromkeys(_TABLES, "*i32")
        | dict.fromkeys(_SIZES, "i32")
        | {"scale": "fp32"},
        constexprs={"KV_HEADS": 8, "PAGE_SIZE": 16, "SPLIT": SPLIT_KEYS, "LONGEST": LONGEST_SPLIT_CHAIN}
        | {"WIDEN": False, **constants},
        num_warps=options["num_warps"],
        num_stages=options["num_stages"],
    )


SPECIALISATIONS: list[Specialisation] = [
    *(_specialisation("bf16", head_dim, group) for head_dim in (64, 128, 256) for group in (1, 4, 8)),
    _specialisation("fp16", 128, 4),
    *(_specialisation("fp32", head_dim, 4) for head_dim in (64, 128, 256)),
]
