"""Where each segment of a step finds its keys, and what its rows see: made once a step, used by all layers."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Rows first … end - 1 of the step over a prefix.

    When the pages lie side by side with room for the rows, `start` is their first slot and the rows' keys are written
    behind the prefix; else the pages `page_ids` are gathered.
    """

    first: int
    end: int
    prefix_len: int
    start: int | None
    page_ids: torch.Tensor
    # float32 [R, P + R] to add to scores, 0 or -inf; none when the only row sees everything.
    mask: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class AttentionLayout:
    """extension_rows, extension_slots int64 [k]: the rows that are written behind their prefix, and where; or none."""

    segments: list[Segment]
    page_size: int
    workspace_rows: int
    extension_rows: torch.Tensor | None
    extension_slots: torch.Tensor | None


def build_layout(
    *,
    row_offsets: NDArray[np.int32],
    prefix_lens: NDArray[np.int32],
    block_tables: list[NDArray[np.int32]],
    parents: NDArray[np.int32],
    extends: NDArray[np.bool_],
    page_size: int,
) -> AttentionLayout:
    """row_offsets [segments + 1], parents [N] (relative to the segment's first row, -1 hangs on the prefix).

    extends [segments]: the slots behind this prefix hold nothing committed, so that the rows may be put there. A block
    table may be longer than its prefix needs; the rest is room to extend into.
    """
    offsets, lengths = row_offsets.tolist(), prefix_lens.tolist()
    segments = [
        _segment(first, end, length, table, parents[first:end], may_extend, page_size)
        for first, end, length, table, may_extend in zip(
            offsets[:-1], offsets[1:], lengths, block_tables, extends.tolist(), strict=True
        )
    ]
    rows, slots = _extensions(segments)
    return AttentionLayout(
        segments=segments,
        page_size=page_size,
        workspace_rows=max((_gathered_rows(segment, page_size) for segment in segments), default=0),
        extension_rows=rows,
        extension_slots=slots,
    )


def _segment(
    first: int,
    end: int,
    prefix_len: int,
    table: NDArray[np.int32],
    parents: NDArray[np.int32],
    may_extend: bool,
    page_size: int,
) -> Segment:
    needed = -(-(prefix_len + end - first) // page_size)
    side_by_side = may_extend and len(table) >= needed and bool((np.diff(table[:needed]) == 1).all())
    return Segment(
        first=first,
        end=end,
        prefix_len=prefix_len,
        start=int(table[0]) * page_size if side_by_side else None,
        page_ids=torch.from_numpy(table[: -(-prefix_len // page_size)].astype(np.int64)),
        mask=_mask(parents, prefix_len) if end - first > 1 else None,
    )


def _mask(parents: NDArray[np.int32], prefix_len: int) -> torch.Tensor:
    """One pass a depth: every row marks itself, then its parent, then that one's parent, until all are at the root."""
    rows = np.arange(len(parents))
    mask = np.zeros((len(parents), prefix_len + len(parents)), np.float32)
    mask[:, prefix_len:] = -np.inf
    if (parents == rows - 1).all():
        mask[:, prefix_len:] = np.triu(mask[:, prefix_len:], 1)
        return torch.from_numpy(mask)
    ancestors: NDArray[np.integer] = rows
    while len(rows):
        mask[rows, prefix_len + ancestors] = 0
        above = parents[ancestors]
        rows, ancestors = rows[above >= 0], above[above >= 0]
    return torch.from_numpy(mask)


def _gathered_rows(segment: Segment, page_size: int) -> int:
    if segment.start is not None:
        return 0
    return max(len(segment.page_ids) * page_size, segment.prefix_len + segment.end - segment.first)


def _extensions(segments: list[Segment]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    extended = [(s, s.start + s.prefix_len) for s in segments if s.start is not None]
    if not extended:
        return None, None
    rows = torch.cat([torch.arange(s.first, s.end) for s, _ in extended])
    slots = torch.cat([torch.arange(slot, slot + s.end - s.first) for s, slot in extended])
    return rows, slots
