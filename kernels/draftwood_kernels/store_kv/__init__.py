"""Queries, keys and values of a step's rows made ready: head norms, rotation, store. One dispatch point.

Shapes: N rows, H query heads, G KV heads, D head size in pairs (see `rotary`).
"""

import torch

from draftwood_kernels.store_kv import reference


def store_kv(
    fused: torch.Tensor, head_norm: torch.Tensor | None, eps: float, phases: torch.Tensor, fresh: torch.Tensor
) -> torch.Tensor:
    """fused [N, H + 2G, D] as the qkv product leaves it -> queries [N, H, D], normed and rotated; a kernel's lie dense.

    Keys, normed and rotated, then values fill fresh [N, 2G, D], of the same type. head_norm [H + G, D] weighs query and
    key heads after their RMSNorm; without it there is none. phases complex64 [N, 1, D / 2]. A kernel rounds once.
    """
    if fused.is_cuda:
        from draftwood_kernels.store_kv import kernel  # noqa: PLC0415

        return kernel.store_kv(fused, head_norm, eps, phases, fresh)
    return reference.store_kv(fused, head_norm, eps, phases, fresh)
