"""What turns logits into tokens and trees."""

import torch

from draftwood_kernels.bench.case import Case, size_bytes
from draftwood_kernels.bench.shapes import ModelShape, Setting, StepShape
from draftwood_kernels.bench.step_inputs import make_step
from draftwood_kernels.build_tree import Candidates, DraftTrees
from draftwood_kernels.build_tree import kernel as tree_kernel
from draftwood_kernels.build_tree import reference as tree_reference
from draftwood_kernels.keep_bounds import KeepBounds, reference
from draftwood_kernels.keep_bounds import kernel as keep_kernel
from draftwood_kernels.perturb import NoiseRows
from draftwood_kernels.perturb import reference as noise_reference
from draftwood_kernels.perturb.kernel import perturb_rows
from draftwood_kernels.sample.kernel import sample_rows
from draftwood_kernels.walk_tree.kernel import WalkedPaths, walk_sampled

_DEPTHS = 15


def token_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    return [
        *_sampling_cases(model, step, setting),
        _noise_case(model, step, setting),
        *_tree_cases(model, step, setting),
    ]


def _sampling_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    rows, device = step.batch * (step.nodes + 1), setting.device
    logits = 3 * torch.randn(rows, model.vocab, device=device, dtype=torch.float32)
    greedy, warm = torch.zeros(rows, device=device), torch.full((rows,), 0.8, device=device)
    numbers = torch.arange(rows, device=device)
    top_k, top_p = torch.full((rows,), 50, device=device), torch.full((rows,), 0.9, device=device, dtype=torch.float64)
    min_p = torch.zeros_like(top_p)
    inputs = make_step(step, model.vocab, setting)
    paths = WalkedPaths(
        nodes=torch.zeros(step.batch, step.nodes + 1, dtype=torch.int32, device=device),
        tokens=torch.zeros(step.batch, step.nodes + 1, dtype=torch.int32, device=device),
        lengths=torch.zeros(step.batch, dtype=torch.int32, device=device),
    )
    # No child of anybody: every walk ends at its root.
    sampled = torch.full((rows,), -1, dtype=torch.int32, device=device)
    best = _only_the_best(logits)

    def parts(bounds: KeepBounds) -> tuple[torch.Tensor, ...]:
        return bounds.sure, bounds.tied, bounds.last

    def walk() -> torch.Tensor:
        walk_sampled(sampled, inputs.trees, step.nodes, paths)
        return paths.lengths

    size = f"[{rows}, {model.vocab}]"
    return [
        Case(
            op="sample",
            name=f"sample_rows greedy {size}",
            run=lambda: sample_rows(logits, greedy, numbers, numbers),
            reference=lambda: logits.argmax(dim=1),
            bytes_moved=size_bytes(logits),
            rivals={"torch argmax": lambda: logits.argmax(dim=1)},
        ),
        Case(
            op="sample",
            name=f"sample_rows keyed, top_k 1 {size}",
            run=lambda: sample_rows(logits, warm, numbers, numbers, best),
            reference=lambda: logits.argmax(dim=1),
            bytes_moved=size_bytes(logits),
            rivals={"torch multinomial": lambda: torch.multinomial(logits.softmax(dim=1), 1)},
        ),
        Case(
            op="keep_bounds",
            name=f"keep_bounds top_k 50, top_p 0.9 {size}",
            run=lambda: parts(keep_kernel.keep_bounds(logits, warm, top_k, top_p, min_p)),
            reference=lambda: parts(reference.keep_bounds(logits, warm, top_k, top_p, min_p)),
            bytes_moved=size_bytes(logits),
            rivals={"torch sort": lambda: reference.keep_bounds(logits, warm, top_k, top_p, min_p)},
        ),
        Case(
            op="walk_tree",
            name=f"walk_tree {step.batch} trees of {step.nodes} nodes",
            run=walk,
            reference=lambda: torch.ones_like(paths.lengths),
            bytes_moved=2 * size_bytes(inputs.trees.token_ids),
        ),
    ]


def _only_the_best(logits: torch.Tensor) -> KeepBounds:
    best, last = logits.max(dim=1)
    return KeepBounds(sure=torch.full_like(best, torch.inf), tied=best, last=last.int())


def _noise_case(model: ModelShape, step: StepShape, setting: Setting) -> Case:
    count, device = step.batch * _DEPTHS, setting.device
    logits = torch.randn(count, model.vocab, device=device, dtype=setting.dtype)
    numbers = torch.arange(count, device=device)
    warm = torch.full((count,), 0.8, device=device)
    rows = NoiseRows(temperatures=warm, seeds=numbers, positions=numbers, is_seeded=torch.ones_like(numbers).int())

    def expected() -> torch.Tensor:
        on_cpu = NoiseRows(
            temperatures=warm.cpu(), seeds=numbers.cpu(), positions=numbers.cpu(), is_seeded=rows.is_seeded.cpu()
        )
        return noise_reference.perturb_rows(logits.cpu(), on_cpu).to(device)

    def with_other_noise() -> torch.Tensor:
        scaled = logits.float() / warm[:, None]
        return scaled - torch.empty_like(scaled).exponential_().log()

    return Case(
        op="perturb",
        name=f"perturb_rows [{count}, {model.vocab}]",
        run=lambda: perturb_rows(logits, rows),
        reference=expected,
        bytes_moved=size_bytes(logits) + logits.numel() * torch.float32.itemsize,
        rivals={"torch exponential": with_other_noise},
    )


def _tree_cases(model: ModelShape, step: StepShape, setting: Setting) -> list[Case]:
    device, count = setting.device, min(step.nodes, model.vocab)
    logits = 3 * torch.randn(step.batch * _DEPTHS, model.vocab, device=device, dtype=torch.float32)
    candidates = tree_reference.top_candidates(logits, count)
    limits = torch.full((step.batch,), step.nodes, dtype=torch.int32, device=device)
    chains = torch.zeros_like(limits)

    def pair(found: Candidates) -> tuple[torch.Tensor, ...]:
        return found.token_ids, found.log_probs

    def parts(trees: DraftTrees) -> tuple[torch.Tensor, ...]:
        return trees.token_ids, trees.parents, trees.log_probs, trees.counts

    def trees_reference() -> tuple[torch.Tensor, ...]:
        on_cpu = Candidates(log_probs=candidates.log_probs.cpu(), token_ids=candidates.token_ids.cpu())
        trees = tree_reference.build_trees(on_cpu, limits.cpu(), chains.cpu(), step.nodes)
        return tuple(part.to(device) for part in parts(trees))

    return [
        Case(
            op="build_tree",
            name=f"top_candidates {count} of [{len(logits)}, {model.vocab}]",
            run=lambda: pair(tree_kernel.top_candidates(logits, count)),
            reference=lambda: pair(tree_reference.top_candidates(logits, count)),
            bytes_moved=size_bytes(logits),
            rivals={"torch topk": lambda: logits.log_softmax(dim=1).topk(count, dim=1)},
        ),
        Case(
            op="build_tree",
            name=f"build_trees {step.batch} of {step.nodes} nodes",
            run=lambda: parts(tree_kernel.build_trees(candidates, limits, chains, step.nodes)),
            reference=trees_reference,
            bytes_moved=size_bytes(candidates.log_probs, candidates.token_ids),
        ),
    ]
