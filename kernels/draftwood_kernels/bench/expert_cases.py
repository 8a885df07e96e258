"""The experts of a layer: what goes into them, for plain rows and for trees, and the sum of what they made.

Shapes: N rows, K experts a row, M = N * K pairs sorted by expert, X experts, E hidden, I intermediate.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from draftwood_kernels.bench.case import Case, size_bytes
from draftwood_kernels.bench.quantized_weights import QuantizedWeight, quantized_weights
from draftwood_kernels.bench.shapes import ExpertShape, Setting, StepShape
from draftwood_kernels.combine_experts import kernel as combine_kernel
from draftwood_kernels.combine_experts import reference as combine_reference
from draftwood_kernels.grouped_gemm.kernel import grouped_gemm, grouped_quantized_gemm


@dataclass(frozen=True, kw_only=True)
class _Routed:
    """pairs [M, E]; counts: of each expert, as the host knows them; places int64 [M]: where a row's pairs went."""

    pairs: torch.Tensor
    counts: list[int]
    offsets: torch.Tensor  # int32 [X + 1]
    places: torch.Tensor

    @property
    def hit_experts(self) -> int:
        return sum(count > 0 for count in self.counts)


def expert_cases(shape: ExpertShape, step: StepShape, setting: Setting) -> list[Case]:
    sizes = shape.experts, 2 * shape.intermediate, shape.hidden
    weight = torch.randn(sizes, device=setting.device, dtype=setting.dtype)
    quantized = quantized_weights(*sizes, device=setting.device)
    plain, trees = (_route(shape, each, setting) for each in (replace(step, nodes=0), step))
    cases = []
    for routed in (plain, trees):
        cases.append(_plain_case(routed, weight))
        cases += [_quantized_case(routed, codes, weight) for codes in quantized]
    return [*cases, _combine_case(shape, trees)]


def _route(shape: ExpertShape, step: StepShape, setting: Setting) -> _Routed:
    """Every row chooses at random."""
    rows, device = step.batch * (step.nodes + 1), setting.device
    chosen = torch.rand(rows, shape.experts, device=device).topk(shape.choices).indices.flatten()
    counts = chosen.bincount(minlength=shape.experts)
    return _Routed(
        pairs=torch.randn(len(chosen), shape.hidden, device=device, dtype=setting.dtype),
        counts=counts.tolist(),
        offsets=functional.pad(counts.cumsum(0), (1, 0)).int(),
        places=chosen.argsort(stable=True).argsort(),
    )


def _plain_case(routed: _Routed, weight: torch.Tensor) -> Case:
    experts, outputs, _ = weight.shape
    return Case(
        op="grouped_gemm",
        name=f"grouped_gemm {_sizes(routed, weight)}",
        run=lambda: grouped_gemm(routed.pairs, weight, routed.offsets),
        reference=lambda: _one_by_one(routed, weight),
        bytes_moved=_bytes_moved(routed, outputs, size_bytes(weight) // experts),
        operations=_operations(routed, outputs),
        rivals=_rivals(routed, weight),
    )


def _quantized_case(routed: _Routed, codes: QuantizedWeight, weight: torch.Tensor) -> Case:
    """The rivals have a weight of the same sizes that never was codes: unpacked, these would fill another gigabyte."""
    experts, outputs, _ = weight.shape
    return Case(
        op="grouped_gemm",
        name=f"grouped_gemm {codes.kind} {_sizes(routed, weight)}",
        run=lambda: grouped_quantized_gemm(routed.pairs, codes.codes, codes.scales, codes.group, routed.offsets),
        reference=lambda: _one_by_one(routed, codes.unpacked(routed.pairs.dtype)),
        bytes_moved=_bytes_moved(routed, outputs, codes.size_bytes // experts),
        operations=_operations(routed, outputs),
        rivals={f"{name}, no codes": run for name, run in _rivals(routed, weight).items()},
    )


def _combine_case(shape: ExpertShape, routed: _Routed) -> Case:
    outputs, end = torch.randn_like(routed.pairs), routed.offsets[-1:]
    rows = len(outputs) // shape.choices
    weights = torch.rand(rows, shape.choices, device=outputs.device).softmax(dim=1)
    tensors = outputs, weights, routed.places, end
    return Case(
        op="combine_experts",
        name=f"combine_experts [{rows}, {shape.choices}, {shape.hidden}]",
        run=lambda: combine_kernel.combine_experts(*tensors),
        reference=lambda: combine_reference.combine_experts(*tensors),
        bytes_moved=size_bytes(*tensors, outputs[:rows]),
        rivals={"torch": lambda: combine_reference.combine_experts(*tensors)},
    )


def _one_by_one(routed: _Routed, weight: torch.Tensor) -> torch.Tensor:
    parts = zip(routed.pairs.split(routed.counts), weight, strict=True)
    return torch.cat([functional.linear(part, one) for part, one in parts])


def _rivals(routed: _Routed, weight: torch.Tensor) -> dict[str, Callable[[], object]]:
    rivals: dict[str, Callable[[], object]] = {"torch, one by one": lambda: _one_by_one(routed, weight)}
    if _has_grouped_mm(weight.device):
        rivals["torch grouped_mm"] = lambda: functional.grouped_mm(routed.pairs, weight.mT, offs=routed.offsets[1:])
    return rivals


def _has_grouped_mm(device: torch.device) -> bool:
    """From torch 2.10 on; with chips that have no kernel for it, it waits for the host, which no graph can have."""
    on_cpu = device.type == "cpu"
    return hasattr(functional, "grouped_mm") and (on_cpu or torch.cuda.get_device_capability(device)[0] in (9, 10))


def _bytes_moved(routed: _Routed, outputs: int, expert_bytes: int) -> int:
    pairs = len(routed.pairs)
    return routed.hit_experts * expert_bytes + size_bytes(routed.pairs) + pairs * outputs * routed.pairs.element_size()


def _operations(routed: _Routed, outputs: int) -> int:
    return 2 * routed.pairs.numel() * outputs


def _sizes(routed: _Routed, weight: torch.Tensor) -> str:
    return f"{[*routed.pairs.shape]} x {routed.hit_experts} of {[*weight.shape]}"
