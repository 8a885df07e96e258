import torch
from torch.nn.functional import scaled_dot_product_attention

from draftwood_kernels.block_attention.layout import BlockLayout


def block_attention(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    context: torch.Tensor,
    layout: BlockLayout,
    *,
    is_causal: bool,
    window: int | None,
) -> torch.Tensor:
    lengths, kv_heads = layout.lengths.tolist(), fresh.shape[1] // 2
    block_size = len(queries) // len(lengths)
    out = []
    for session, length in enumerate(lengths):
        rows = slice(session * block_size, (session + 1) * block_size)
        keys_values = torch.cat([context[_slots(layout, session, length)], fresh[rows]]).transpose(0, 1)
        # The heads of one group share keys: [G, H / G, B, D] over [G, 1, length + B, D].
        keys, values = keys_values[:, None].expand(-1, queries.shape[1] // kv_heads, -1, -1).chunk(2)
        grouped = queries[rows].unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)
        mask = _visible(length, block_size, is_causal=is_causal, window=window)
        attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        out.append(attended.permute(2, 0, 1, 3).flatten(1))
    return torch.cat(out)


def _slots(layout: BlockLayout, session: int, length: int) -> torch.Tensor:
    positions = torch.arange(length)
    pages = layout.block_tables[session].long()[positions // layout.page_size]
    return pages * layout.page_size + positions % layout.page_size


def _visible(length: int, block_size: int, *, is_causal: bool, window: int | None) -> torch.Tensor:
    """bool [B, length + B] by how far a key lies behind its row."""
    behind = torch.arange(length, length + block_size)[:, None] - torch.arange(length + block_size)
    seen = behind >= 0 if is_causal else torch.ones_like(behind, dtype=torch.bool)
    return seen if window is None else seen & (behind.abs() < window)
