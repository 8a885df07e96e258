"""Paged tree attention over latent rows: one key a token, of which the first part is its value, for all heads.

Programs, tiles and splits are those of `tree_attention`'s kernel. A tile is ROWS rows times GROUP heads; a block of
latents is loaded once for all of them, as keys and as values. Where the heads of a row don't fit one tile, its tiles
are neighbours in the grid. The length of a latent is a sum of two powers of two, 512 and 64, so scores are two
products: of the part that is a value too, and of the rotated one.

Shapes: N rows, S segments, H heads, V value numbers (the latent), R rotated numbers, D = V + R, K splits.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import math
from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation
from draftwood_kernels.tree_attention.kernel import (
    LOG2_E,
    SPLIT_KEYS,
    check_layout,
    combine,
    related,
    segment_of,
    slots_of,
    specialise_combine,
    split_count,
    weigh,
)
from draftwood_kernels.tree_attention.paged_layout import LONGEST_SPLIT_CHAIN, PagedLayout


def latent_attention_triton(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    layout: PagedLayout,
    *,
    value_dim: int,
    scale: float,
    split_keys: int = SPLIT_KEYS,
) -> torch.Tensor:
    """queries [N, H, D], fresh [N, 1, D] of the step's rows, pages [slots, 1, D] of one layer -> a new [N, H, V]."""
    rows, heads, latent_dim = queries.shape
    segments = len(layout.prefix_lens)
    _check(queries, fresh, pages, value_dim)
    check_layout(rows, layout)
    out = queries.new_empty(rows, heads, value_dim)
    if not rows:
        return out
    splits = max(1, -(-layout.max_prefix_len // split_keys))
    partial_rows = layout.split_rows if splits > 1 else 0
    partial = queries.new_empty(splits, partial_rows, heads, value_dim, dtype=torch.float32)
    logs = queries.new_empty(splits, partial_rows, heads, dtype=torch.float32)
    constants, options = _constants(heads, value_dim, latent_dim - value_dim, queries.dtype)
    tiles = rows // constants["ROWS"] + segments + 1
    _attend[(tiles * constants["HEAD_BLOCKS"], 1, splits)](
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
        rows,
        layout.split_rows,
        segments,
        layout.block_tables.shape[1],
        layout.ancestors.shape[1],
        LOG2_E * scale,
        PAGE_SIZE=layout.page_size,
        SPLIT=split_keys,
        LONGEST=LONGEST_SPLIT_CHAIN,
        # Triton's interpreter, the only way onto a CPU, takes bfloat16 in a product for the integers of its bits.
        WIDEN=queries.device.type == "cpu",
        **constants,
        **options,
    )
    if partial_rows:
        combine(partial, logs, out, layout, heads // _combined(heads), split_keys)
    return out


def _check(queries: torch.Tensor, fresh: torch.Tensor, pages: torch.Tensor, value_dim: int) -> None:
    rows, _, latent_dim = queries.shape
    assert fresh.shape == (rows, 1, latent_dim), f"{fresh.shape} of {rows} rows of {latent_dim} numbers"
    assert pages.shape[1:] == (1, latent_dim), f"{pages.shape} beside {latent_dim} numbers"
    assert 0 < value_dim < latent_dim, f"{value_dim} value numbers of {latent_dim}"
    assert queries.dtype == fresh.dtype == pages.dtype, f"{queries.dtype}, {fresh.dtype}, {pages.dtype}"
    assert all(tensor.is_contiguous() for tensor in (queries, fresh, pages)), "no strides"


@triton.jit
def _latents(rows, there, VALUES: tl.constexpr, ROTATED: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr):
    """[n, V] and [n, R] of what begins at the pointers `rows` [n]."""
    v = tl.arange(0, BLOCK_V)
    r = tl.arange(0, BLOCK_R)
    latent = tl.load(rows[:, None] + v[None, :], mask=there[:, None] & (v < VALUES)[None, :], other=0.0)
    at = rows[:, None] + VALUES + r[None, :]
    return latent, tl.load(at, mask=there[:, None] & (r < ROTATED)[None, :], other=0.0)


@triton.jit
def _accumulate(latent_q, rotated_q, latent, rotated, visible, scale, peak, total, acc, WIDEN: tl.constexpr):
    """One block of latents into the running softmax."""
    if WIDEN:
        latent_q, rotated_q = latent_q.to(tl.float32), rotated_q.to(tl.float32)
        latent, rotated = latent.to(tl.float32), rotated.to(tl.float32)
    scores = tl.dot(rotated_q, tl.trans(rotated), input_precision="ieee")
    scores = tl.dot(latent_q, tl.trans(latent), scores, input_precision="ieee") * scale
    return weigh(scores, latent, visible, peak, total, acc)


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
    ancestors,
    chains,
    split_offsets,
    all_rows,
    split_rows,
    segments,
    table_width,
    words,
    scale,
    PAGE_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    LONGEST: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    VALUES: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    tile = tl.program_id(0) // HEAD_BLOCKS
    split = tl.program_id(2)
    segment = segment_of(row_offsets, tile, segments + 1, ROWS, 1)
    first = tl.load(row_offsets + segment)
    rows = tl.load(row_offsets + segment + 1, mask=segment < segments, other=all_rows) - first
    first_row = (tile - first // ROWS - segment) * ROWS
    if first_row >= rows:
        return

    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    v = tl.arange(0, BLOCK_V)
    row = first_row + m // GROUP
    head = tl.program_id(0) % HEAD_BLOCKS * GROUP + m % GROUP
    live = (m < ROWS * GROUP) & (row < rows) & (head < HEADS)
    head_row = (first + row).to(tl.int64) * HEADS + head
    stored = live[:, None] & (v < VALUES)[None, :]
    cell = head_row[:, None] * VALUES + v[None, :]
    if segment == segments:
        # Behind the last offset there are rows of nobody.
        tl.store(out + cell, tl.zeros([BLOCK_M, BLOCK_V], out.dtype.element_ty), mask=stored & (split == 0))
        return
    prefix_len = tl.load(prefix_lens + segment)
    chain = tl.load(chains + segment)
    splits = split_count(prefix_len, rows, chain, SPLIT, LONGEST)
    if split >= splits:
        return

    latent_q, rotated_q = _latents(queries + head_row * (VALUES + ROTATED), live, VALUES, ROTATED, BLOCK_V, BLOCK_R)
    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)

    last = split == splits - 1
    end = tl.where(last, prefix_len, (split + 1) * SPLIT)
    table = block_tables + segment.to(tl.int64) * table_width
    for start in range(split * SPLIT, end, BLOCK_N):
        key = start + n
        there = key < end
        at = pages + slots_of(table, key, there, PAGE_SIZE) * (VALUES + ROTATED)
        latent, rotated = _latents(at, there, VALUES, ROTATED, BLOCK_V, BLOCK_R)
        peak, total, acc = _accumulate(
            latent_q, rotated_q, latent, rotated, there[None, :], scale, peak, total, acc, WIDEN
        )

    # A parent comes before its child: no row looks behind the tile's last one.
    end = tl.where(last, tl.minimum(first_row + ROWS, rows), 0)
    for start in range(0, end, BLOCK_N):
        key = start + n
        there = key < end
        at = fresh + (first + key).to(tl.int64) * (VALUES + ROTATED)
        latent, rotated = _latents(at, there, VALUES, ROTATED, BLOCK_V, BLOCK_R)
        visible = related(ancestors, words, first, row, live, start, key, chain) & there[None, :]
        peak, total, acc = _accumulate(latent_q, rotated_q, latent, rotated, visible, scale, peak, total, acc, WIDEN)

    total = tl.where(total > 0, total, 1.0)
    acc = acc / total[:, None]
    if splits == 1:
        tl.store(out + cell, acc.to(out.dtype.element_ty), mask=stored)
    else:
        place = split.to(tl.int64) * split_rows + tl.load(split_offsets + segment) + row
        place = place * HEADS + head
        tl.store(partial + place[:, None] * VALUES + v[None, :], acc, mask=stored)
        tl.store(logs + place, peak + tl.log2(total), mask=live)


# (padded value size, bytes a number) -> rows times heads, and keys, of a tile; warps, stages. Keys divide the 64 bits
# of a word. What accumulates a tile of 64 beside 512 numbers spills.
_TILES = {
    (64, 2): (32, 32, 8, 3),
    (128, 2): (32, 32, 4, 3),
    (256, 2): (32, 32, 8, 3),
    (512, 2): (32, 16, 8, 3),
    (64, 4): (16, 16, 8, 2),
    (128, 4): (16, 16, 8, 2),
    (256, 4): (16, 16, 8, 2),
}
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def _constants(heads: int, values: int, rotated: int, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, int]]:
    """Tile and launch options, by the model alone and never by the batch."""
    block_v = max(64, 1 << (values - 1).bit_length())
    assert (block_v, dtype.itemsize) in _TILES, f"no tile for {values} value numbers, {dtype}"
    block_m, block_n, warps, stages = _TILES[block_v, dtype.itemsize]
    head_blocks = -(-heads // block_m)
    group = -(-heads // head_blocks)
    constants = {
        "HEADS": heads,
        "HEAD_BLOCKS": head_blocks,
        "GROUP": group,
        "VALUES": values,
        "ROTATED": rotated,
        "BLOCK_V": block_v,
        "BLOCK_R": max(16, 1 << (rotated - 1).bit_length()),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "ROWS": block_m // group,
    }
    return constants, {"num_warps": warps, "num_stages": stages}


def _combined(heads: int) -> int:
    """Heads that a program joins: what fits its registers beside 512 numbers each."""
    return math.gcd(heads, 4)


def _specialise(dtype: str, heads: int, values: int, rotated: int) -> Specialisation:
    constants, options = _constants(heads, values, rotated, _TYPES[dtype])
    return Specialisation(
        kernel=_attend,
        name=f"{dtype} latent {values} + {rotated}, {heads} heads",
        signature=dict.fromkeys(("queries", "fresh", "pages", "out"), f"*{dtype}")
        | dict.fromkeys(("partial", "logs"), "*fp32")
        | dict.fromkeys(("row_offsets", "prefix_lens", "block_tables"), "*i32")
        | {"ancestors": "*i64", "chains": "*i32", "split_offsets": "*i32"}
        | dict.fromkeys(("all_rows", "split_rows", "segments", "table_width", "words"), "i32")
        | {"scale": "fp32"},
        constexprs={"PAGE_SIZE": 16, "SPLIT": SPLIT_KEYS, "LONGEST": LONGEST_SPLIT_CHAIN, "WIDEN": False} | constants,
        num_warps=options["num_warps"],
        num_stages=options["num_stages"],
    )


SPECIALISATIONS: list[Specialisation] = [
    *(_specialise("bf16", heads, 512, 64) for heads in (8, 16, 40, 64, 128)),
    *(_specialise("bf16", 16, values, rotated) for values, rotated in ((64, 16), (128, 64), (256, 32))),
    _specialise("fp16", 128, 512, 64),
    specialise_combine("bf16", 512, _combined(128)),
    *(_specialise("fp32", 4, values, rotated) for values, rotated in ((24, 8), (64, 16), (128, 64), (256, 32))),
]
