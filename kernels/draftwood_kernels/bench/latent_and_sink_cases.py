"""Attention over latents, and with sinks and a window, of plain rows and of trees."""

from dataclasses import replace

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftwood_kernels.bench.attention_cases import side_by_side
from draftwood_kernels.bench.case import Case, size_bytes
from draftwood_kernels.bench.shapes import ModelShape, Setting, StepShape
from draftwood_kernels.bench.step_inputs import StepInputs, make_step
from draftwood_kernels.latent_attention import latent_attention
from draftwood_kernels.sink_attention import sink_attention

# As in gpt-oss; half of a shorter prefix.
_WINDOW = 128


def latent_and_sink_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    cases = []
    for shape in (replace(step, nodes=0), step):
        cases.append(_latent_case(model, shape, setting))
        cases += [_sink_case(model, shape, setting, window) for window in (None, min(_WINDOW, step.context // 2))]
    return cases


def _latent_case(model: ModelShape, step: StepShape, setting: Setting) -> Case:
    """As in DeepSeek-V3, where a latent is as long as four heads and half a head is rotated."""
    inputs = make_step(step, model.vocab, setting)
    rows, value_dim = len(inputs.token_ids), 4 * model.head_dim
    latent_dim, scale = value_dim + model.head_dim // 2, (1.5 * model.head_dim) ** -0.5

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, latent_dim, device=setting.device, dtype=setting.dtype)

    queries, fresh, pages = randn(rows, model.heads), randn(rows, 1), randn(inputs.total_slots, 1)
    latents, mask = side_by_side(step, inputs, fresh, pages)
    grouped = queries.view(step.batch, -1, model.heads, latent_dim).transpose(1, 2)

    def dense() -> torch.Tensor:
        values = latents[..., :value_dim]
        out = scaled_dot_product_attention(grouped, latents, values, attn_mask=mask, scale=scale, enable_gqa=True)
        return out.transpose(1, 2).reshape(rows, model.heads, value_dim)

    return Case(
        op="latent_attention",
        name=f"latent_attention {value_dim} + {latent_dim - value_dim}, {model.heads} heads, {_words(step)}",
        run=lambda: latent_attention(queries, fresh, pages, None, inputs.layout, value_dim=value_dim, scale=scale),
        reference=dense,
        bytes_moved=size_bytes(fresh[:1]) * (step.batch * step.context + rows)
        + size_bytes(queries) * (latent_dim + value_dim) // latent_dim,
        operations=2 * rows * model.heads * (latent_dim + value_dim) * step.context,
        rivals={"torch SDPA": dense},
    )


def _sink_case(model: ModelShape, step: StepShape, setting: Setting, window: int | None) -> Case:
    inputs = make_step(step, model.vocab, setting)
    rows, kv = len(inputs.token_ids), 2 * model.kv_heads

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=setting.device, dtype=setting.dtype)

    queries, sinks = randn(rows, model.heads, model.head_dim), randn(model.heads)
    fresh, pages = randn(rows, kv, model.head_dim), randn(inputs.total_slots, kv, model.head_dim)
    entries, mask = side_by_side(step, inputs, fresh, pages)
    seen = mask & _near(step, inputs, window)
    prefix_keys = step.context if window is None else min(step.context, window - 1)

    def dense() -> torch.Tensor:
        keys, values = entries.repeat_interleave(model.heads // model.kv_heads, dim=1).chunk(2, dim=1)
        grouped = queries.view(step.batch, -1, model.heads, model.head_dim).transpose(1, 2)
        scores = (grouped @ keys.mT * model.head_dim**-0.5).masked_fill(~seen, -torch.inf)
        sink = sinks.view(-1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
        return (weights @ values).transpose(1, 2).reshape(rows, -1)

    return Case(
        op="sink_attention",
        name=f"sink_attention{'' if window is None else f' window {window}'}, {_words(step)}",
        run=lambda: sink_attention(queries, fresh, pages, None, inputs.layout, sinks=sinks, window=window),
        reference=dense,
        bytes_moved=size_bytes(fresh[:1]) * (step.batch * prefix_keys + rows) + 2 * size_bytes(queries),
        operations=4 * rows * model.heads * model.head_dim * prefix_keys,
        rivals={"torch": dense},
    )


def _near(step: StepShape, inputs: StepInputs, window: int | None) -> torch.Tensor:
    """bool [batch, 1, R, P + R]: which keys are at most a window behind the row."""
    positions = step.context + inputs.layout.depths.view(step.batch, -1)
    prefix = torch.arange(step.context, device=positions.device).expand(step.batch, -1)
    behind = positions[:, :, None] - torch.cat([prefix, positions], dim=1)[:, None]
    return (behind < (step.context + positions.shape[1] if window is None else window))[:, None]


def _words(step: StepShape) -> str:
    return f"batch {step.batch}, context {step.context}, {step.nodes} nodes"
