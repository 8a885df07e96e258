"""A step plan as the device reads it: padded to a size, and packed into one copy.

Shapes: N rows, S segments, K logit rows, T walks, W words and P places of a row's path, by the step's size.
"""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.packed_buffer import Field, PackedBuffer
from draftwood_kernels.tree_attention import PagedLayout
from draftwood_kernels.tree_attention.paged_layout import pack_ancestors, pack_paths, split_offsets_of
from draftwood_kernels.walk_tree.kernel import FlatTrees
from draftwood_verifier.gpu.step_size import StepSize
from draftwood_verifier.plan import StepPlan, Walk


class StepInputs:
    """Buffers that stay where they are.

    Padding is rows of nobody, draws that nobody reads, whatever an earlier step has left there, and walks that end at
    the first logit row, which is kept anyway.
    """

    def __init__(self, size: StepSize, page_size: int, spare_slot: int, device: torch.device) -> None:
        """spare_slot: where the KV goes that nobody keeps."""
        self.size = size
        self._page_size = page_size
        self._spare_slot = spare_slot
        self._buffer = PackedBuffer(_fields(size), device)
        self._host = {name: array.numpy() for name, array in self._buffer.host.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._buffer.device[name]

    def fill(self, plan: StepPlan) -> None:
        """Queue a plan that fits the size; the last one must have been read by now."""
        self._fill_rows(plan)
        self._fill_draws(plan)
        self._fill_trees(plan.walks)
        if plan.drawn is not None:
            self._put("drawn", plan.drawn)
        self._buffer.upload()

    def take_drawn(self, tokens: torch.Tensor) -> None:
        """Queue what the rows' tokens are of the filled plan: those [T] that the walks of the step before drew."""
        self["token_ids"].copy_(tokens.index_select(0, self["drawn"]))

    @cached_property
    def layout(self) -> PagedLayout:
        size = self.size
        return PagedLayout(
            row_offsets=self["row_offsets"],
            prefix_lens=self["prefix_lens"],
            block_tables=self["block_tables"],
            ancestors=self["ancestors"],
            chains=self["chains"],
            paths=self["paths"],
            depths=self["depths"],
            split_offsets=self["split_offsets"],
            split_rows=size.rows,
            page_size=self._page_size,
            max_prefix_len=size.prefix_len,
            max_depth=size.depth,
        )

    @cached_property
    def trees(self) -> FlatTrees:
        return FlatTrees(
            first_rows=self["first_logits"],
            offsets=self["tree_offsets"],
            token_ids=self["tree_tokens"],
            parents=self["tree_parents"],
        )

    def _fill_rows(self, plan: StepPlan) -> None:
        segments = len(plan.prefix_lens)
        ancestors, chains = pack_ancestors(plan.parents, plan.row_offsets)
        paths, depths = pack_paths(plan.parents, plan.row_offsets, chains)
        splits = split_offsets_of(plan.row_offsets, chains).numpy()
        self._put("token_ids", plan.token_ids)
        self._put("positions", plan.positions)
        self._put("prefix_lens", plan.prefix_lens)
        self._put("row_offsets", plan.row_offsets, rest=plan.row_offsets[-1])
        self._put("split_offsets", splits, rest=splits[-1])
        self._put("chains", chains.numpy(), rest=1)
        self._put("depths", depths.numpy())
        self._put("ancestors", ancestors.numpy())
        self._put("paths", paths.numpy())
        tables = self._host["block_tables"]
        for index in range(segments):
            tables[index, : len(plan.block_tables[index])] = plan.block_tables[index]

    def _fill_draws(self, plan: StepPlan) -> None:
        self._put("logit_rows", plan.logit_rows)
        self._put("draw_positions", plan.positions[plan.logit_rows] + 1)
        self._put("slots", self._slots(plan), rest=self._spare_slot)
        if not plan.walks:
            return
        index, owners = _drawn_rows(plan.walks)
        for name, values in (
            ("temperatures", [walk.sampling.temperature for walk in plan.walks]),
            ("seeds", np.array([walk.sampling.seed for walk in plan.walks], np.uint64).view(np.int64)),
            ("top_ks", [walk.sampling.top_k for walk in plan.walks]),
            ("top_ps", [walk.sampling.top_p for walk in plan.walks]),
            ("min_ps", [walk.sampling.min_p for walk in plan.walks]),
        ):
            array = self._host[name]
            array[index] = np.asarray(values, array.dtype)[owners]

    def _fill_trees(self, walks: list[Walk]) -> None:
        self._put("first_logits", np.array([walk.first_logit for walk in walks], np.int32))
        offsets = np.cumsum([0, *(len(walk.tree) for walk in walks)])
        self._put("tree_offsets", offsets, rest=offsets[-1])
        if walks:
            self._put("tree_tokens", np.concatenate([walk.tree.token_ids for walk in walks]))
            self._put("tree_parents", np.concatenate([walk.tree.parents for walk in walks]))

    def _slots(self, plan: StepPlan) -> NDArray[np.int64]:
        """Where the KV of each logit row belongs once the row is accepted; the spare slot for what is kept otherwise,
        or never: rows of chunks, and rows behind the end of what the session may hold."""
        rows = plan.logit_rows
        if not len(rows):
            return np.zeros(0, np.int64)
        segments = np.searchsorted(plan.row_offsets, rows, side="right") - 1
        pages = plan.positions[rows] // self._page_size
        table = self._host["block_tables"][segments, np.minimum(pages, self.size.table_pages - 1)]
        slots = table.astype(np.int64) * self._page_size + plan.positions[rows] % self._page_size
        held = np.array([len(table) for table in plan.block_tables])[segments]
        kept = accepts(plan)[segments] & (pages < held)
        return np.where(kept, slots, self._spare_slot)

    def _put(self, name: str, array: NDArray[np.generic], *, rest: int | np.generic = 0) -> None:
        """`array` in the front of a field, `rest` behind it."""
        field = self._host[name]
        field[len(array) :] = rest
        field[tuple(slice(length) for length in array.shape)] = array


def accepts(plan: StepPlan) -> NDArray[np.bool_]:
    """Segments [S] whose rows are kept by their walk: those that are sampled from their first row on."""
    found = np.zeros(len(plan.prefix_lens), np.bool_)
    for walk in plan.walks:
        found[walk.segment] = walk.root_row == plan.row_offsets[walk.segment]
    return found


def _drawn_rows(walks: list[Walk]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Every logit row of every walk, and the number of that walk."""
    sizes = np.array([1 + len(walk.tree) for walk in walks])
    owners = np.repeat(np.arange(len(walks)), sizes)
    firsts = np.array([walk.first_logit for walk in walks])
    return firsts[owners] + np.arange(len(owners)) - (np.cumsum(sizes) - sizes)[owners], owners


def _fields(size: StepSize) -> dict[str, Field]:
    rows, segments, logits, walks = size.rows, size.segments, size.logits, size.walks
    ints, longs = torch.int32, torch.int64
    fields: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "token_ids": (ints, (rows,)),
        "drawn": (ints, (rows,)),
        "positions": (ints, (rows,)),
        "row_offsets": (ints, (segments + 1,)),
        "prefix_lens": (ints, (segments,)),
        "block_tables": (ints, (segments, size.table_pages)),
        "ancestors": (longs, (rows, size.words)),
        "chains": (ints, (segments,)),
        "paths": (ints, (rows, size.tree_rows)),
        "depths": (ints, (rows,)),
        "split_offsets": (ints, (segments + 1,)),
        "logit_rows": (ints, (logits,)),
        "draw_positions": (longs, (logits,)),
        "slots": (longs, (logits,)),
        "temperatures": (torch.float32, (logits,)),
        "seeds": (longs, (logits,)),
        "top_ks": (longs, (logits,)),
        "top_ps": (torch.float64, (logits,)),
        "min_ps": (torch.float64, (logits,)),
        "first_logits": (ints, (walks,)),
        "tree_offsets": (ints, (walks + 1,)),
        "tree_tokens": (ints, (logits,)),
        "tree_parents": (ints, (logits,)),
    }
    return {name: Field(shape=shape, dtype=dtype) for name, (dtype, shape) in fields.items()}
