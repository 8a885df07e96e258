"""Every kernel at the sizes of one layer of a model over one step, with its reference and rivals.

Shapes: N rows, E hidden, H query heads, G KV heads, D head size, V vocabulary.
"""

import torch
from torch.nn import functional

from draftwood_kernels import rms_norm, rotary, silu_and_mul, store_kv
from draftwood_kernels.append_context import ContextRows
from draftwood_kernels.append_context import kernel as append_kernel
from draftwood_kernels.append_context import reference as append_reference
from draftwood_kernels.bench.attention_cases import attention_cases
from draftwood_kernels.bench.block_cases import block_cases
from draftwood_kernels.bench.case import Case, size_bytes
from draftwood_kernels.bench.expert_cases import expert_cases
from draftwood_kernels.bench.latent_and_sink_cases import latent_and_sink_cases
from draftwood_kernels.bench.linear_cases import linear_cases
from draftwood_kernels.bench.shapes import ExpertShape, ModelShape, Setting, StepShape
from draftwood_kernels.bench.token_cases import token_cases
from draftwood_kernels.commit_kv import kernel as commit_kernel
from draftwood_kernels.rms_norm import kernel as norm_kernel
from draftwood_kernels.rotary import kernel as rotary_kernel
from draftwood_kernels.silu_and_mul import kernel as silu_kernel
from draftwood_kernels.store_kv import kernel as store_kernel

_EPS = 1e-6


def kernel_cases(model: ModelShape, experts: ExpertShape, step: StepShape, setting: Setting) -> list[Case]:
    return [
        *_row_cases(model, step, setting),
        *linear_cases(model, step, setting),
        *expert_cases(experts, step, setting),
        *_cache_cases(model, step, setting),
        *attention_cases(model, step, setting),
        *latent_and_sink_cases(model, step, setting),
        *block_cases(model, step, setting),
        *token_cases(model, step, setting),
    ]


def _row_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    rows = step.batch * (step.nodes + 1)

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=setting.device, dtype=setting.dtype)

    x, residual, norm = randn(rows, model.hidden), randn(rows, model.hidden), randn(model.hidden)
    gate_up = randn(rows, 2 * model.intermediate)
    return [
        Case(
            op="rms_norm",
            name=f"add_rms_norm [{rows}, {model.hidden}]",
            run=lambda: norm_kernel.add_rms_norm(x, residual, norm, _EPS),
            reference=lambda: rms_norm.reference.add_rms_norm(x, residual, norm, _EPS),
            bytes_moved=4 * size_bytes(x) + size_bytes(norm),
            rivals={"torch": lambda: functional.rms_norm(x + residual, (model.hidden,), norm, _EPS)},
        ),
        Case(
            op="silu_and_mul",
            name=f"silu_and_mul [{rows}, 2 * {model.intermediate}]",
            run=lambda: silu_kernel.silu_and_mul(gate_up),
            reference=lambda: silu_and_mul.reference.silu_and_mul(gate_up),
            bytes_moved=size_bytes(gate_up) * 3 // 2,
            rivals={"torch": lambda: silu_and_mul.reference.silu_and_mul(gate_up)},
        ),
    ]


def _cache_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    rows, kv = step.batch * (step.nodes + 1), 2 * model.kv_heads
    layers, device = 2, setting.device

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=device, dtype=setting.dtype)

    phases = torch.polar(torch.ones(rows, 1, model.head_dim // 2), torch.rand(rows, 1, model.head_dim // 2)).to(device)
    fused, head_norm = (
        randn(rows, model.heads + kv, model.head_dim),
        randn(model.heads + model.kv_heads, model.head_dim),
    )
    heads, fresh = randn(rows, model.heads, model.head_dim), randn(rows, kv, model.head_dim)
    scratch, pages = randn(layers, rows, kv, model.head_dim), randn(layers, rows, kv, model.head_dim)
    order = torch.randperm(rows, device=device)
    projected = randn(rows, layers, 2, model.kv_heads, model.head_dim)
    cache, k_norm = torch.zeros_like(projected), randn(layers, 1, model.head_dim)
    table = phases[:, 0].contiguous()
    ints = torch.tensor([0, rows], dtype=torch.int32, device=device)
    context = ContextRows(
        row_offsets=ints, lengths=ints[1:], starts=ints[:1], block_tables=ints[:1].view(1, 1), page_size=rows
    )

    def commit() -> torch.Tensor:
        commit_kernel.commit_kv(scratch, pages, order, order)
        return pages

    def store() -> tuple[torch.Tensor, torch.Tensor]:
        return store_kernel.store_kv(fused, head_norm, _EPS, phases, fresh), fresh

    def store_reference() -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.empty_like(fresh, dtype=torch.float32)
        queries = store_kv.reference.store_kv(fused.float(), head_norm.float(), _EPS, phases, place)
        return queries, place

    def append() -> torch.Tensor:
        append_kernel.append_context(projected, k_norm, _EPS, table, context, cache)
        return cache

    def append_expected() -> torch.Tensor:
        target = torch.empty_like(cache, dtype=torch.float32, device="cpu")
        on_cpu = ContextRows(
            row_offsets=context.row_offsets.cpu(),
            lengths=context.lengths.cpu(),
            starts=context.starts.cpu(),
            block_tables=context.block_tables.cpu(),
            page_size=rows,
        )
        tensors = projected.float().cpu(), k_norm.float().cpu(), _EPS, table.cpu()
        append_reference.append_context(*tensors, on_cpu, target)
        return target.to(device)

    return [
        Case(
            op="rotary",
            name=f"rotate_pairs [{rows}, {model.heads}, {model.head_dim}]",
            run=lambda: rotary_kernel.rotate_pairs(heads, phases),
            reference=lambda: rotary.reference.rotate_pairs(heads.float(), phases),
            bytes_moved=2 * size_bytes(heads) + size_bytes(phases),
            rivals={"torch": lambda: rotary.reference.rotate_pairs(heads.float(), phases).to(heads.dtype)},
        ),
        Case(
            op="store_kv",
            name=f"store_kv [{rows}, {model.heads} + {kv}, {model.head_dim}]",
            run=store,
            reference=store_reference,
            bytes_moved=2 * size_bytes(fused) + size_bytes(phases),
            rivals={"torch": store_reference},
        ),
        Case(
            op="commit_kv",
            name=f"commit_kv {layers} layers, {rows} rows",
            run=commit,
            reference=lambda: pages.index_copy(1, order, scratch.index_select(1, order)),
            bytes_moved=2 * size_bytes(scratch),
            rivals={"torch": lambda: pages.index_copy_(1, order, scratch.index_select(1, order))},
        ),
        Case(
            op="append_context",
            name=f"append_context {layers} layers, {rows} rows",
            run=append,
            reference=append_expected,
            bytes_moved=2 * size_bytes(projected),
        ),
    ]
