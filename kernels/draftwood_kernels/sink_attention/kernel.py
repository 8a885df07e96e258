"""The kernels of `tree_attention`, in which a sink is a key without a value that every row of its head sees."""

import torch

from draftwood_kernels.specialisation import Specialisation
from draftwood_kernels.tree_attention.kernel import SPLIT_KEYS, specialise_attend, tree_attention_triton
from draftwood_kernels.tree_attention.paged_layout import PagedLayout


def sink_attention_triton(
    queries: torch.Tensor,
    fresh: torch.Tensor,
    pages: torch.Tensor,
    layout: PagedLayout,
    *,
    sinks: torch.Tensor,
    window: int | None,
    split_keys: int = SPLIT_KEYS,
) -> torch.Tensor:
    """queries [N, H, D], fresh [N, C, D] of the step's rows, pages [slots, C, D] of one layer -> a new [N, H, D]."""
    assert sinks.shape == queries.shape[1:2], f"sinks {[*sinks.shape]} of {queries.shape[1]} heads"
    assert sinks.is_contiguous(), "no strides"
    assert window is None or window > 0, f"window: {window}, a row sees itself at least"
    return tree_attention_triton(queries, fresh, pages, layout, split_keys=split_keys, sinks=sinks, window=window)


SPECIALISATIONS: list[Specialisation] = [
    specialise_attend(dtype, 64, 8, name="sink_attention", sinks=True, window=window)
    for dtype in ("bf16", "fp16", "fp32")
    for window in (None, 128)
]
