"""Which keys a block's rows see, by the layer's rule; columns are the block's B rows, then C context positions."""

import torch


def block_mask(
    lengths: list[int], block_size: int, *, is_causal: bool, window: int | None, device: torch.device
) -> torch.Tensor | None:
    """bool [S, B, B + C], C = max(lengths); None when every row sees every column.

    The root is at position lengths[s], which has no context yet: only columns before it are context. A window counts
    the row itself, and reaches both ways unless the layer is causal.
    """
    columns = max(lengths)
    is_padded = min(lengths) < columns
    is_cut = window is not None and columns + block_size > window
    if not (is_padded or is_causal or is_cut):
        return None
    length_s = torch.tensor(lengths, device=device)[:, None, None]
    row = torch.arange(block_size, device=device)[None, :, None]
    column = torch.arange(columns, device=device)[None, None, :]
    context = column < length_s
    behind = row - torch.arange(block_size, device=device)[None, None, :]
    block = behind >= 0 if is_causal else torch.ones_like(behind, dtype=torch.bool)
    if window is not None:
        context = context & (length_s + row - column < window)
        block = block & (behind.abs() < window)
    shape = (len(lengths), block_size, -1)
    return torch.cat([block.expand(shape[0], -1, -1), context.expand(shape)], dim=2)
