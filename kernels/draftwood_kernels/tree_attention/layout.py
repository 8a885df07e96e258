"""Where each segment of a step finds its keys, and what its rows see: made once a step, used by all layers."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_NO_PAGES = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Rows first … end - 1 of the step over a prefix.

    When the pages lie side by side with room for the rows, `start` is their first slot and the rows' keys are written
    behind the prefix; else the pages `page_ids` int64 are gathered.
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
    """slots int64 [N]: where a row is written behind its prefix, or -1; extension_rows, extension_slots int64 [k]: the
    rows that are, and where.
    """

    segments: list[Segment]
    page_size: int
    workspace_rows: int
    slots: NDArray[np.int64]
    extension_rows: torch.Tensor
    extension_slots: torch.Tensor


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
    slots = _extension_slots(segments, len(parents))
    extending = np.flatnonzero(slots >= 0)
    return AttentionLayout(
        segments=segments,
        page_size=page_size,
        workspace_rows=max((_gathered_rows(segment, page_size) for segment in segments), default=0),
        slots=slots,
        extension_rows=torch.from_numpy(extending),
        extension_slots=torch.from_numpy(slots[extending]),
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
    side_by_side = may_extend and len(table) >= needed and _ascends_by_one(table[:needed].tolist())
    return Segment(
        first=first,
        end=end,
        prefix_len=prefix_len,
        start=int(table[0]) * page_size if side_by_side else None,
        page_ids=_NO_PAGES if side_by_side else torch.from_numpy(table[: -(-prefix_len // page_size)].astype(np.int64)),
        mask=_mask(parents, prefix_len) if end - first > 1 else None,
    )


def _ascends_by_one(pages: list[int]) -> bool:
    return pages == list(range(pages[0], pages[0] + len(pages)))


def _mask(parents: NDArray[np.int32], prefix_len: int) -> torch.Tensor:
    """A row sees what its parent sees, and itself."""
    rows = len(parents)
    mask = np.zeros((rows, prefix_len + rows), np.float32)
    among = mask[:, prefix_len:]
    among[:] = -np.inf
    if (parents == np.arange(-1, rows - 1)).all():
        among[:] = np.triu(among, 1)
        return torch.from_numpy(mask)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            among[row] = among[parent]
        among[row, row] = 0
    return torch.from_numpy(mask)


def _gathered_rows(segment: Segment, page_size: int) -> int:
    if segment.start is not None:
        return 0
    return max(len(segment.page_ids) * page_size, segment.prefix_len + segment.end - segment.first)


def _extension_slots(segments: list[Segment], rows: int) -> NDArray[np.int64]:
    slots = np.full(rows, -1, np.int64)
    for segment in segments:
        if segment.start is not None:
            first = segment.start + segment.prefix_len
            slots[segment.first : segment.end] = np.arange(first, first + segment.end - segment.first)
    return slots
