"""Attention of draft blocks over paged contexts: of a layer that sees everything, and of one with a causal window."""

from dataclasses import replace

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftwood_kernels.bench.attention_cases import side_by_side
from draftwood_kernels.bench.case import Case, size_bytes
from draftwood_kernels.bench.shapes import ModelShape, Setting, StepShape
from draftwood_kernels.bench.step_inputs import StepInputs, make_step
from draftwood_kernels.block_attention import BlockLayout
from draftwood_kernels.block_attention.kernel import block_attention

# Rows of a block: a root and what is drafted behind it.
_BLOCK = 16
# Half of a shorter context.
_WINDOW = 2048


def block_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    blocks = replace(step, nodes=_BLOCK - 1)
    return [_case(model, blocks, setting, window) for window in (None, min(_WINDOW, step.context // 2))]


def _case(model: ModelShape, step: StepShape, setting: Setting, window: int | None) -> Case:
    """With a window, a row sees `window` keys, whether of the context or of its block."""
    inputs = make_step(step, model.vocab, setting)
    rows, kv = len(inputs.token_ids), 2 * model.kv_heads

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, model.head_dim, device=setting.device, dtype=setting.dtype)

    queries, fresh, pages = randn(rows, model.heads), randn(rows, kv), randn(inputs.total_slots, kv)
    layout, is_causal = _layout(inputs), window is not None
    context_keys = step.context if window is None else min(step.context, window - 1)
    entries = side_by_side(step, inputs, fresh, pages)[0][:, :, -(context_keys + _BLOCK) :].contiguous()
    mask = None if window is None else _near(context_keys, window, setting.device)
    keys, values = entries.chunk(2, dim=1)
    grouped = queries.view(step.batch, -1, model.heads, model.head_dim).transpose(1, 2)

    def dense() -> torch.Tensor:
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(rows, -1)

    return Case(
        op="block_attention",
        name=f"block_attention{'' if window is None else f' causal, window {window}'}, batch {step.batch}, "
        f"context {step.context}, {_BLOCK} rows",
        run=lambda: block_attention(queries, fresh, pages, layout, is_causal=is_causal, window=window),
        reference=dense,
        bytes_moved=size_bytes(fresh[:1]) * (step.batch * context_keys + rows) + 2 * size_bytes(queries),
        operations=4 * rows * model.heads * model.head_dim * (step.context + _BLOCK if window is None else window),
        rivals={"torch SDPA": dense},
    )


def _layout(inputs: StepInputs) -> BlockLayout:
    paged = inputs.layout
    return BlockLayout(lengths=paged.prefix_lens, block_tables=paged.block_tables, page_size=paged.page_size)


def _near(context_keys: int, window: int, device: torch.device) -> torch.Tensor:
    """bool [B, context_keys + B]: which of a context's last keys and its block's are not ahead, and near enough."""
    row, key = (torch.arange(count, device=device) for count in (_BLOCK, context_keys + _BLOCK))
    behind = context_keys + row[:, None] - key
    return (behind >= 0) & (behind < window)
