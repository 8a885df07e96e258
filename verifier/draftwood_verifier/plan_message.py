"""Work as one array of int32: what rank 0 broadcasts and the other ranks execute, steps and drafts.

A message of a step holds the rows that the step before has kept, then the plan. It takes 4 * (7 + 4 rows + 3 segments
+ 15 walks + table entries + 2 kept rows) bytes, or less: 40 KiB for 64 trees of 16 nodes over 16 pages each, beside 256
tokens of a prompt. Rows are at most batch * (nodes + 1) and the prefill chunk, table entries batch * the longest
context's pages.

Features are not in it: only rank 0 has drafters, and hidden states are whole on every rank. Nor are trees: their nodes
are rows of the plan. A message of drafts holds their hidden states and wishes.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.build_tree import TreeWish
from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.plan import CommitPlan, DraftPlan, StepPlan, Walk
from draftwood_wire.tree import TokenTree

Ints = NDArray[np.int32]

_HEADER = 6  # rows, segments, table entries, logit rows, walks, kept rows
_WALK = 15
_WISH = 8


def encode(kept: CommitPlan, plan: StepPlan) -> Ints:
    """Inverse of `decode`."""
    assert plan.drawn is None, "the other ranks don't know what a step has drawn"
    tables = [np.asarray(table, np.int32) for table in plan.block_tables]
    table_sizes = np.array([len(table) for table in tables], np.int32)
    header = (
        len(plan.token_ids), len(tables), int(table_sizes.sum()), len(plan.logit_rows), len(plan.walks), len(kept.rows)
    )  # fmt: skip
    return np.concatenate(
        [
            np.array(header, np.int32),
            kept.rows,
            kept.slots,
            plan.token_ids,
            plan.positions,
            plan.parents,
            plan.row_offsets,
            plan.prefix_lens,
            table_sizes,
            *tables,
            plan.logit_rows,
            *(_walk_ints(walk) for walk in plan.walks),
        ]
    )


def decode(message: Ints) -> tuple[CommitPlan, StepPlan]:
    """The step as rank 0 has it, but for the log-probabilities of trees, which no rank needs to execute it."""
    rows, segments, entries, logits, walks, kept = message[:_HEADER].tolist()
    sizes = (kept, kept, rows, rows, rows, segments + 1, segments, segments, entries, logits, walks * _WALK)
    parts = _cut(message[_HEADER:], sizes)
    commit = CommitPlan(rows=next(parts), slots=next(parts))
    token_ids, positions, parents, row_offsets, prefix_lens, table_sizes, tables, logit_rows, walk_ints = parts
    return commit, StepPlan(
        token_ids=token_ids,
        positions=positions,
        row_offsets=row_offsets,
        prefix_lens=prefix_lens,
        block_tables=list(_cut(tables, table_sizes.tolist())),
        parents=parents,
        logit_rows=logit_rows,
        walks=[_walk(ints, token_ids, parents, logit_rows) for ints in walk_ints.reshape(-1, _WALK)],
    )


def encode_drafts(plan: DraftPlan) -> Ints:
    """Inverse of `decode_drafts`."""
    rows = np.ascontiguousarray(plan.hidden_states, np.float32)
    wishes = [_wish_ints(wish) for wish in plan.wishes]
    return np.concatenate([np.array([len(wishes), rows.shape[1]], np.int32), *wishes, rows.view(np.int32).ravel()])


def decode_drafts(message: Ints) -> DraftPlan:
    """The plan as rank 0 has it."""
    count, width = message[:2].tolist()
    wishes, rows = message[2 : 2 + count * _WISH], message[2 + count * _WISH :]
    return DraftPlan(
        hidden_states=rows.view(np.float32).reshape(-1, width),
        wishes=[_wish(ints) for ints in wishes.reshape(-1, _WISH)],
    )


def _wish_ints(wish: TreeWish) -> Ints:
    assert wish.seed is not None, "a request that the verifier has admitted has a seed"
    whole = np.array([wish.depths, wish.position, wish.is_chain, wish.node_limit], np.int32)
    temperature, seed = np.array([wish.temperature], np.float64), np.array([wish.seed], np.uint64)
    return np.concatenate([whole, temperature.view(np.int32), seed.view(np.int32)])


def _wish(ints: Ints) -> TreeWish:
    depths, position, is_chain, node_limit = ints[:4].tolist()
    return TreeWish(
        depths=depths,
        position=position,
        is_chain=bool(is_chain),
        node_limit=node_limit,
        temperature=float(ints[4:6].view(np.float64)[0]),
        seed=int(ints[6:].view(np.uint64)[0]),
    )


def _cut(ints: Ints, sizes: tuple[int, ...] | list[int]) -> Iterator[Ints]:
    start = 0
    for size in sizes:
        yield ints[start : start + size]
        start += size
    assert start == len(ints), f"a message of {len(ints)} numbers where {start} were expected"


def _walk_ints(walk: Walk) -> Ints:
    sampling = walk.sampling
    numbers = np.array([sampling.temperature, sampling.top_p, sampling.min_p], np.float64)
    whole = (
        walk.segment,
        walk.first_logit,
        walk.root_row,
        len(walk.tree),
        walk.position,
        sampling.top_k,
        walk.draft_row,
    )
    return np.concatenate(
        [np.array(whole, np.int32), numbers.view(np.int32), np.array([sampling.seed], np.uint64).view(np.int32)]
    )


def _walk(ints: Ints, token_ids: Ints, parents: Ints, logit_rows: Ints) -> Walk:
    segment, first_logit, root_row, nodes, position, top_k, draft_row = ints[:7].tolist()
    temperature, top_p, min_p = ints[7:13].view(np.float64).tolist()
    node_rows = logit_rows[first_logit + 1 : first_logit + 1 + nodes]
    return Walk(
        segment=segment,
        first_logit=first_logit,
        root_row=root_row,
        tree=TokenTree(
            token_ids=token_ids[node_rows], parents=parents[node_rows], log_probs=np.zeros(nodes, np.float32)
        ),
        position=position,
        sampling=SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=int(ints[13:].view(np.uint64)[0])
        ),
        draft_row=draft_row,
    )
