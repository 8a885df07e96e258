"""Token trees on the device: the best candidates of every row of logits, then one best-first search a session.

Shapes: R rows, V vocabulary, K candidates, B blocks of a row, S sessions, T depths, N nodes.
A block keeps its K best in the order of their ids; survivors of all blocks go through the same kernel again until one
block is left, whose K are then ranked. A threshold over the ordered integer image of the numbers finds them: exact, and
nothing is sorted on the way.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.build_tree.trees import MOST_CANDIDATES, MOST_DEPTHS, MOST_NODES, Candidates, DraftTrees
from draftwood_kernels.specialisation import Specialisation

SELECT_BLOCK, SELECT_WARPS = 2048, 8
RANK_WARPS = 4
RANK_CHUNK = 16


def top_candidates(logits: torch.Tensor, count: int) -> Candidates:
    """Raises ValueError for a count outside 1..256 or above V."""
    rows, vocab = logits.shape
    if not 0 < count <= min(MOST_CANDIDATES, vocab):
        raise ValueError(f"count: {count} is outside 1..{min(MOST_CANDIDATES, vocab)}")
    dense = logits if logits.stride(1) == 1 else logits.contiguous()
    device = logits.device
    blocks = triton.cdiv(vocab, SELECT_BLOCK)
    peaks, sums = (torch.empty(rows, blocks, dtype=torch.float32, device=device) for _ in range(2))
    log_probs = torch.empty(rows, count, dtype=torch.float32, device=device)
    token_ids = torch.empty(rows, count, dtype=torch.int32, device=device)
    if not rows:
        return Candidates(log_probs=log_probs, token_ids=token_ids)
    images, ids = _select(dense, None, vocab, count, (peaks, sums))
    while images.shape[1] > count:
        images, ids = _select(images, ids, images.shape[1], count, (None, None))
    _rank_kernel[(rows,)](
        images,
        ids,
        peaks,
        sums,
        log_probs,
        token_ids,
        count,
        blocks,
        BLOCK_K=triton.next_power_of_2(count),
        BLOCK_B=triton.next_power_of_2(blocks),
        CHUNK=RANK_CHUNK,
        num_warps=RANK_WARPS,
    )
    return Candidates(log_probs=log_probs, token_ids=token_ids)


def build_trees(candidates: Candidates, node_limits: torch.Tensor, chains: torch.Tensor, most_nodes: int) -> DraftTrees:
    """Raises ValueError for sizes that a node's place, packed into 32 bits, can't hold."""
    sessions = len(node_limits)
    rows, count = candidates.log_probs.shape
    depths = rows // max(sessions, 1)
    for name, value, most in (("most_nodes", most_nodes, MOST_NODES), ("depths", depths, MOST_DEPTHS)):
        if not 0 < value <= most and sessions:
            raise ValueError(f"{name}: {value} is outside 1..{most}")
    device = node_limits.device
    trees = DraftTrees(
        token_ids=torch.empty(sessions, most_nodes, dtype=torch.int32, device=device),
        parents=torch.empty(sessions, most_nodes, dtype=torch.int32, device=device),
        log_probs=torch.empty(sessions, most_nodes, dtype=torch.float32, device=device),
        counts=torch.empty(sessions, dtype=torch.int32, device=device),
    )
    if sessions:
        _grow_kernel[(sessions,)](
            candidates.log_probs.contiguous(),
            candidates.token_ids.contiguous(),
            node_limits,
            chains,
            trees.token_ids,
            trees.parents,
            trees.log_probs,
            trees.counts,
            depths,
            count,
            most_nodes,
            BLOCK_T=triton.next_power_of_2(depths),
            BLOCK=2 * triton.next_power_of_2(most_nodes),
            num_warps=_grow_warps(most_nodes),
        )
    return trees


def _grow_warps(most_nodes: int) -> int:
    """One as long as the registers do: a search is a chain of short steps, and a barrier costs more than a step."""
    return 4 if most_nodes > 128 else 1


def _select(
    source: torch.Tensor,
    ids: torch.Tensor | None,
    width: int,
    count: int,
    sums: tuple[torch.Tensor | None, torch.Tensor | None],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and ids int32 [R, B * K] of each block's K best; without `ids`, `source` are logits."""
    rows, blocks = len(source), triton.cdiv(width, SELECT_BLOCK)
    images, kept_ids = (torch.empty(rows, blocks * count, dtype=torch.int32, device=source.device) for _ in range(2))
    _select_kernel[(rows, blocks)](
        source,
        ids,
        images,
        kept_ids,
        *sums,
        width,
        source.stride(0),
        count,
        BLOCK=SELECT_BLOCK,
        num_warps=SELECT_WARPS,
    )
    return images, kept_ids


@triton.jit
def _select_kernel(source, ids, out_images, out_ids, peaks, sums, width, row_stride, count, BLOCK: tl.constexpr):
    """One block of one row. An image is the float's bits, turned so that unsigned integers order like the numbers."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry = block * BLOCK + tl.arange(0, BLOCK)
    inside = entry < width
    if ids is None:
        logits = tl.load(source + row * row_stride + entry, mask=inside, other=float("-inf")).to(tl.float32)
        peak = tl.max(logits, axis=0)
        shift = tl.where(peak == float("-inf"), 0.0, peak)
        at = row * tl.num_programs(1) + block
        tl.store(peaks + at, peak)
        tl.store(sums + at, tl.sum(tl.exp(logits - shift), axis=0))
        bits = tl.where(logits == 0, 0.0, logits).to(tl.int32, bitcast=True)
        image = (bits ^ ((bits >> 31) | -0x80000000)).to(tl.uint32, bitcast=True)
        # Whatever its sign bit, what is no number comes first: it must not lose to padding.
        image = tl.where(logits == logits, image, 0xFFFFFFFF)
        token = entry
    else:
        image = tl.load(source + row * row_stride + entry, mask=inside, other=0).to(tl.uint32, bitcast=True)
        token = tl.load(ids + row * row_stride + entry, mask=inside, other=0)
    image = tl.where(inside, image, 0).to(tl.uint32)
    threshold = tl.full((), 0, tl.uint32)
    step = tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):
        higher = threshold | step
        enough = tl.sum((image >= higher).to(tl.int32), axis=0) >= count
        threshold = tl.where(enough, higher, threshold)
        step = step >> 1
    above = image > threshold
    tied = image == threshold
    room = count - tl.sum(above.to(tl.int32), axis=0)
    kept = above | (tied & (tl.cumsum(tied.to(tl.int32), axis=0) <= room))
    place = (row * tl.num_programs(1) + block) * count + tl.cumsum(kept.to(tl.int32), axis=0) - 1
    tl.store(out_images + place, image.to(tl.int32, bitcast=True), mask=kept)
    tl.store(out_ids + place, token, mask=kept)


@triton.jit
def _rank_kernel(
    images,
    ids,
    peaks,
    sums,
    log_probs,
    token_ids,
    count,
    blocks,
    BLOCK_K: tl.constexpr,
    BLOCK_B: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """K survivors of a row by falling logit, ties by lower id, which is their order here."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    b = tl.arange(0, BLOCK_B)
    ours = tl.load(images + row * count + k, mask=k < count, other=0).to(tl.uint32, bitcast=True)
    rank = tl.zeros([BLOCK_K], tl.int32)
    for first in range(0, count, CHUNK):
        other = first + tl.arange(0, CHUNK)
        theirs = tl.load(images + row * count + other, mask=other < count, other=0).to(tl.uint32, bitcast=True)
        before = (theirs[None, :] > ours[:, None]) | (
            (theirs[None, :] == ours[:, None]) & (other[None, :] < k[:, None])
        )
        rank += tl.sum((before & (other < count)[None, :]).to(tl.int32), axis=1)
    peak = tl.load(peaks + row * blocks + b, mask=b < blocks, other=float("-inf"))
    highest = tl.max(peak, axis=0)
    parts = tl.load(sums + row * blocks + b, mask=b < blocks, other=0.0) * tl.exp(peak - highest)
    turned = ours.to(tl.int32, bitcast=True)
    logits = (turned ^ ((~turned >> 31) | -0x80000000)).to(tl.float32, bitcast=True)
    tl.store(log_probs + row * count + rank, logits - highest - tl.log(tl.sum(parts, axis=0)), mask=k < count)
    tl.store(token_ids + row * count + rank, tl.load(ids + row * count + k, mask=k < count), mask=k < count)


@triton.jit
def _grow_kernel(
    log_probs,
    token_ids,
    node_limits,
    chains,
    out_tokens,
    out_parents,
    out_log_probs,
    out_counts,
    depths,
    candidates,
    most_nodes,
    BLOCK_T: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The search of `reference.best_first`, in float64 like it. What waits is a vector: the n-th node taken puts its
    first child at 2n and its next sibling at 2n + 1, so that of equals the earliest born is the first."""
    session = tl.program_id(0).to(tl.int64)
    entry = tl.arange(0, BLOCK)
    t = tl.arange(0, BLOCK_T)
    rows = log_probs + session * depths * candidates
    tokens = token_ids + session * depths * candidates
    best = tl.load(rows + t * candidates, mask=t < depths, other=0.0)
    broken = tl.sum((tl.abs(best) < float("inf")).to(tl.int32), axis=0) < BLOCK_T
    limit = tl.where(broken, 0, tl.minimum(tl.load(node_limits + session), most_nodes))
    is_tree = tl.load(chains + session) == 0
    waiting = tl.where(entry == 0, tl.minimum(tl.load(rows).to(tl.float64), 0.0), float("-inf"))
    # The parent's score, and parent, depth and rank in 9, 8 and 9 bits.
    parent_score = tl.zeros([BLOCK], tl.float64)
    place = tl.zeros([BLOCK], tl.int32)
    count = limit * 0
    score, index = tl.max(waiting, axis=0, return_indices=True)
    while (count < limit) & (score > float("-inf")):
        chosen = entry == index
        packed = tl.sum(tl.where(chosen, place, 0), axis=0)
        above = tl.sum(tl.where(chosen, parent_score, 0.0), axis=0)
        parent, depth, rank = packed >> 17, (packed >> 9) & 255, packed & 511
        at = session * most_nodes + count
        tl.store(out_tokens + at, tl.load(tokens + depth * candidates + rank))
        tl.store(out_parents + at, parent)
        tl.store(out_log_probs + at, score.to(tl.float32))
        count += 1
        # Rounding must not make a child better than its parent.
        child = tl.load(rows + (depth + 1) * candidates, mask=depth + 1 < depths, other=float("-inf"))
        child = score + tl.minimum(child.to(tl.float64), 0.0)
        wanted = is_tree & (rank + 1 < candidates)
        sibling = tl.load(rows + depth * candidates + rank + 1, mask=wanted, other=float("-inf"))
        sibling = above + tl.minimum(sibling.to(tl.float64), 0.0)
        born_child, born_sibling = entry == 2 * count, entry == 2 * count + 1
        waiting = tl.where(chosen, float("-inf"), waiting)
        waiting = tl.where(born_child, child, tl.where(born_sibling, sibling, waiting))
        parent_score = tl.where(born_child, score, tl.where(born_sibling, above, parent_score))
        place = tl.where(born_child, (count << 17) | ((depth + 1) << 9), tl.where(born_sibling, packed + 1, place))
        score, index = tl.max(waiting, axis=0, return_indices=True)
    tl.store(out_counts + session, count)


def _selection(dtype: str | None) -> Specialisation:
    first = dtype is not None
    absent: dict[str, Any] = {"ids": None} if first else {"peaks": None, "sums": None}
    present = {"peaks": "*fp32", "sums": "*fp32"} if first else {"ids": "*i32"}
    return Specialisation(
        kernel=_select_kernel,
        name=f"select {dtype} logits" if first else "select survivors",
        signature={"source": f"*{dtype or 'i32'}", "out_images": "*i32", "out_ids": "*i32"}
        | present
        | dict.fromkeys(("width", "row_stride", "count"), "i32"),
        constexprs={"BLOCK": SELECT_BLOCK} | absent,
        num_warps=SELECT_WARPS,
        num_stages=1,
    )


def _ranking(candidates: int, blocks: int) -> Specialisation:
    return Specialisation(
        kernel=_rank_kernel,
        name=f"rank {candidates} of {blocks} blocks",
        signature={"images": "*i32", "ids": "*i32", "token_ids": "*i32"}
        | dict.fromkeys(("peaks", "sums", "log_probs"), "*fp32")
        | {"count": "i32", "blocks": "i32"},
        constexprs={"BLOCK_K": candidates, "BLOCK_B": blocks, "CHUNK": RANK_CHUNK},
        num_warps=RANK_WARPS,
        num_stages=1,
    )


def _growth(nodes: int) -> Specialisation:
    return Specialisation(
        kernel=_grow_kernel,
        name=f"grow up to {nodes} nodes",
        signature=dict.fromkeys(("log_probs", "out_log_probs"), "*fp32")
        | dict.fromkeys(("token_ids", "node_limits", "chains", "out_tokens", "out_parents", "out_counts"), "*i32")
        | dict.fromkeys(("depths", "candidates", "most_nodes"), "i32"),
        constexprs={"BLOCK_T": 16, "BLOCK": 2 * nodes},
        num_warps=_grow_warps(nodes),
        num_stages=1,
    )


SPECIALISATIONS: list[Specialisation] = [
    *(_selection(dtype) for dtype in ("bf16", "fp16", "fp32", None)),
    *(_ranking(candidates, 128) for candidates in (1, 16, 64, 256)),
    *(_growth(nodes) for nodes in (16, 64, 256)),
]
