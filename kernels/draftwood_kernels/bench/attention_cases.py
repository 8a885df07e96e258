"""Tree attention of plain rows and of trees, in both modes, beside the attentions that others offer."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftwood_kernels.bench.case import Case, size_bytes
from draftwood_kernels.bench.shapes import ModelShape, Setting, StepShape
from draftwood_kernels.bench.step_inputs import StepInputs, make_step
from draftwood_kernels.tree_attention import tree_attention

_FLASHINFER_WORKSPACE_BYTES = 128 << 20


def attention_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    return [
        _case(model, shape, setting, row_invariant)
        for shape in (replace(step, nodes=0), step)
        for row_invariant in (False, True)
    ]


def _case(model: ModelShape, step: StepShape, setting: Setting, row_invariant: bool) -> Case:
    inputs = make_step(step, model.vocab, setting)
    rows, kv = len(inputs.token_ids), 2 * model.kv_heads

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, model.head_dim, device=setting.device, dtype=setting.dtype)

    queries, fresh, pages = randn(rows, model.heads), randn(rows, kv), randn(inputs.total_slots, kv)
    prefix_bytes = size_bytes(fresh[:1]) * step.batch * step.context
    entries, mask = side_by_side(step, inputs, fresh, pages)
    keys, values = entries.chunk(2, dim=1)
    grouped = queries.view(step.batch, -1, model.heads, model.head_dim).transpose(1, 2)

    def dense() -> torch.Tensor:
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(rows, -1)

    rivals: dict[str, Callable[[], object]] = {"torch SDPA": dense}
    if step.nodes == 0 and setting.device.type == "cuda" and importlib.util.find_spec("flashinfer"):
        rivals["FlashInfer"] = _flashinfer(model, step, inputs, queries, pages)
    return Case(
        op="invariant_tree_attention" if row_invariant else "tree_attention",
        name=f"tree_attention{' row-invariant' if row_invariant else ''}, batch {step.batch}, context {step.context}, "
        f"{step.nodes} nodes",
        run=lambda: tree_attention(queries, fresh, pages, None, inputs.layout, row_invariant=row_invariant),
        reference=dense,
        bytes_moved=prefix_bytes + 2 * size_bytes(queries) + size_bytes(fresh),
        operations=4 * rows * model.heads * model.head_dim * step.context,
        rivals=rivals,
    )


def side_by_side(
    step: StepShape, inputs: StepInputs, fresh: torch.Tensor, pages: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cache rows [batch, C, P + R, D] and who sees whom [batch, 1, R, P + R], gathered beforehand."""
    layout, rows = inputs.layout, step.nodes + 1
    position = torch.arange(step.context, device=pages.device)
    slots = layout.block_tables.long()[:, position // layout.page_size] * layout.page_size
    prefix = pages[slots + position % layout.page_size]
    both = torch.cat([prefix, fresh.view(step.batch, rows, *fresh.shape[1:])], dim=1)
    column = torch.arange(rows, device=pages.device)
    words = layout.ancestors.view(step.batch, rows, -1)[
        :, :, column // 64 if layout.ancestors.shape[1] > 1 else 0 * column
    ]
    bits = (words >> (column % 64)) & 1 != 0
    chain = (layout.chains != 0).view(-1, 1, 1) & (column <= column[:, None])
    own = bits | chain
    mask = torch.cat([torch.ones_like(own[:, :, :1]).expand(-1, -1, step.context), own], dim=2)
    return both.transpose(1, 2).contiguous(), mask[:, None]


def _flashinfer(
    model: ModelShape, step: StepShape, inputs: StepInputs, queries: torch.Tensor, pages: torch.Tensor
) -> Callable[[], object]:
    """Plain decoding over the same pages, the prefix alone: its kernel reads keys from pages only."""
    flashinfer = importlib.import_module("flashinfer")
    layout, used = inputs.layout, -(-step.context // inputs.layout.page_size)
    paged = pages.view(-1, layout.page_size, 2, model.kv_heads, model.head_dim)
    keys, values = paged[:, :, 0].contiguous(), paged[:, :, 1].contiguous()
    workspace = torch.empty(_FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=pages.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        torch.arange(step.batch + 1, dtype=torch.int32, device=pages.device) * used,
        layout.block_tables[:, :used].flatten(),
        torch.full_like(layout.prefix_lens, (step.context - 1) % layout.page_size + 1),
        model.heads,
        model.kv_heads,
        model.head_dim,
        layout.page_size,
        q_data_type=queries.dtype,
        kv_data_type=pages.dtype,
    )
    return lambda: wrapper.run(queries, (keys, values))
