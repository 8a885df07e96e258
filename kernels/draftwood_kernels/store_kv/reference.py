import torch

from draftwood_kernels.rms_norm import reference as rms_norm
from draftwood_kernels.rotary import reference as rotary


def store_kv(
    fused: torch.Tensor, head_norm: torch.Tensor | None, eps: float, phases: torch.Tensor, fresh: torch.Tensor
) -> torch.Tensor:
    kv_heads = fresh.shape[1] // 2
    heads = fused.shape[1] - 2 * kv_heads
    queries_keys = fused.narrow(1, 0, heads + kv_heads)
    if head_norm is not None:
        queries_keys = rms_norm.rms_norm(queries_keys, head_norm, eps)
    queries_keys = rotary.rotate_pairs(queries_keys, phases)
    keys, values = queries_keys.narrow(1, heads, kv_heads), fused.narrow(1, heads + kv_heads, kv_heads)
    torch.cat([keys, values], dim=1, out=fresh)
    return queries_keys.narrow(1, 0, heads)
