import torch

from draftwood_kernels.append_context.rows import ContextRows
from draftwood_kernels.rms_norm import reference as rms_norm
from draftwood_kernels.rotary import reference as rotary


def append_context(
    projected: torch.Tensor,
    k_norm: torch.Tensor,
    eps: float,
    phase_table: torch.Tensor,
    rows: ContextRows,
    cache: torch.Tensor,
) -> None:
    index, positions, slots = _meant(rows)
    meant = projected.index_select(0, index)
    keys = rms_norm.rms_norm(meant[:, :, 0], k_norm, eps)
    phases = phase_table.index_select(0, positions)[:, None]
    meant[:, :, 0] = rotary.rotate_pairs(keys.flatten(1, 2), phases).view_as(keys)
    cache.index_copy_(0, slots, meant)


def _meant(rows: ContextRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row, position and slot of every row that is meant, int64."""
    offsets, lengths = rows.row_offsets.long(), rows.lengths.long()
    counts = torch.minimum(lengths, offsets.diff())
    sessions = torch.repeat_interleave(torch.arange(len(counts)), counts)
    steps = torch.arange(len(sessions)) - (counts.cumsum(0) - counts)[sessions]
    positions = rows.starts.long()[sessions] + steps
    pages = rows.block_tables.long()[sessions, positions // rows.page_size]
    return offsets[sessions] + steps, positions, pages * rows.page_size + positions % rows.page_size
