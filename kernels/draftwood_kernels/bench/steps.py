"""Whole steps: a plain one and verification of trees, captured as a CUDA graph each."""

from dataclasses import dataclass, replace

import torch

from draftwood_kernels.bench.decoder import Decoder
from draftwood_kernels.bench.measure import Card, gaps, median_us
from draftwood_kernels.bench.shapes import ModelShape, Setting, StepShape
from draftwood_kernels.bench.step_inputs import make_step
from draftwood_kernels.step_graphs import capture


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """`floor_us`: weights and KV read once at the measured bandwidth. Times are none where memory did not suffice."""

    model: str
    batch: int
    context: int
    nodes: int
    time_us: float | None = None
    floor_us: float | None = None
    kernels: int | None = None
    idle_us: float | None = None


def measure_steps(model: ModelShape, steps: tuple[StepShape, ...], setting: Setting, card: Card) -> list[StepRow]:
    limit = max(step.context + step.nodes + 1 for step in steps)
    with torch.inference_mode():
        decoder = Decoder(model, setting, limit)
        return [_measure(decoder, step, setting, card) for step in steps]


def _measure(decoder: Decoder, shape: StepShape, setting: Setting, card: Card) -> StepRow:
    row = StepRow(model=decoder.shape.name, batch=shape.batch, context=shape.context, nodes=shape.nodes)
    torch.cuda.empty_cache()
    step = make_step(shape, decoder.shape.vocab, setting)
    try:
        pages, scratch = decoder.new_pages(step.total_slots), decoder.new_pages(len(step.token_ids) - 1)
        paths = decoder.new_paths(shape.batch, shape.nodes + 1)
        graph = capture(lambda: decoder.step(step, pages, scratch, paths))
    except torch.OutOfMemoryError:
        return row
    time_us, found = median_us(graph), gaps(graph)
    moved = decoder.weight_bytes + decoder.kv_bytes(shape.batch * shape.context)
    return replace(
        row,
        time_us=time_us,
        floor_us=moved / card.bandwidth * 1e6,
        kernels=found.kernels,
        idle_us=found.idle_us,
    )


def check_steps(model: ModelShape, steps: tuple[StepShape, ...], setting: Setting) -> None:
    """In both modes, whole steps, and that a root's logits do not depend on the tree below it.

    Raises AssertionError. The steps have to be of one batch and context: then their prefixes and roots are the same.
    """
    for row_invariant in (False, True):
        torch.manual_seed(0)
        limit = max(step.context + step.nodes + 1 for step in steps)
        decoder = Decoder(model, setting, limit, row_invariant=row_invariant)
        before = decoder.new_pages(make_step(steps[0], model.vocab, setting).total_slots)
        roots = []
        for shape in steps:
            step, pages = make_step(shape, model.vocab, setting), before.clone()
            scratch = torch.full_like(pages[:, : len(step.token_ids)], torch.nan)
            paths = decoder.new_paths(shape.batch, shape.nodes + 1)
            decoder.step(step, pages, scratch, paths)
            first_rows = step.trees.first_rows.long()
            assert torch.equal(pages[:, step.slots[:, 0]], scratch[:, first_rows]), f"{shape}: a root is not committed"
            roots.append(decoder.logits(step, before, scratch)[first_rows])
        for root in roots[1:]:
            torch.testing.assert_close(root, roots[0], rtol=1e-4, atol=1e-4)
