"""The first cost table: steps of the real target on made-up tokens, before anybody is served."""

import itertools
import math
import time

import numpy as np

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.budget.cost_table import Axes, CostTable
from draftwood_verifier.plan import Runner, StepPlan, Walk
from draftwood_wire.tree import TokenTree

# Points of the grid that are run; the others are read off between them.
_SEQUENCES = (1, 4, 16)
_NODES = (0, 8, 32, 128)
_CONTEXT = (32, 1024)
# Rounds over all points; a point that takes longer than this is left out of the last.
_ROUNDS = 3
_LONG_S = 0.05
# What an earlier run found is believed when these points take about as long as it says.
_CHECKED = ((1, 0), (1, 8), (4, 32))
_MOST_CHANGE = 1.5
_GREEDY = SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)


def measure_costs(runner: Runner, *, axes: Axes, pages: int, page_size: int) -> CostTable:
    """Run the grid's points, a few seconds of work; writes into pages that nobody holds."""
    context = tuple(sorted({min(c, runner.context_limit // 2, pages * page_size // 4) for c in _CONTEXT}))
    measured = Axes(
        sequences=tuple(sorted({min(s, axes.sequences[-1]) for s in (*_SEQUENCES, axes.sequences[-1])})),
        nodes=_NODES,
        context=context,
    )
    seconds = np.full((len(context), len(measured.sequences), len(_NODES)), np.inf)
    runner.execute(_plan(1, 8, 1, page_size, runner.vocab_size, pages))
    # What disturbs a machine for a while only ever makes it slower: the quickest of rounds that are apart.
    for number, index in itertools.product(range(_ROUNDS), np.ndindex(seconds.shape)):
        if number < _ROUNDS - 1 or seconds[index] < _LONG_S:
            length, sequences, nodes = context[index[0]], measured.sequences[index[1]], _NODES[index[2]]
            plan = _plan(sequences, nodes, length, page_size, runner.vocab_size, pages)
            seconds[index] = min(seconds[index], _time(runner, plan))
    coarse = CostTable(measured, np.minimum.accumulate(seconds[:, :, ::-1], axis=2)[:, :, ::-1].tolist())
    return _refine(coarse, Axes(sequences=axes.sequences, nodes=axes.nodes, context=context))


def still_true(costs: CostTable, runner: Runner, *, pages: int, page_size: int) -> bool:
    """Whether costs that were kept fit this process, by a tenth of a second's worth of steps."""
    length = costs.axes.context[0]
    for sequences, nodes in _CHECKED:
        if sequences <= costs.axes.sequences[-1]:
            plan = _plan(sequences, nodes, length, page_size, runner.vocab_size, pages)
            taken = min(_time(runner, plan) for _ in range(_ROUNDS))
            if not 1 / _MOST_CHANGE < taken / costs.cost(sequences, nodes, length) < _MOST_CHANGE:
                return False
    return True


def _refine(coarse: CostTable, axes: Axes) -> CostTable:
    seconds = [[[coarse.cost(s, n, c) for n in axes.nodes] for s in axes.sequences] for c in axes.context]
    return CostTable(axes, seconds)


def _time(runner: Runner, plan: StepPlan) -> float:
    start = time.perf_counter()
    runner.execute(plan)
    return time.perf_counter() - start


def _plan(sequences: int, nodes: int, context: int, page_size: int, vocab_size: int, pages: int) -> StepPlan:
    """`nodes` spread over `sequences` trees of depth 1 that hang on prefixes of `context` tokens."""
    lengths = [1 + nodes // sequences + (index < nodes % sequences) for index in range(sequences)]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    rows = int(offsets[-1])
    depths = np.minimum(np.concatenate([np.arange(n) for n in lengths]), 1).astype(np.int32)
    needed = math.ceil((context + max(lengths)) / page_size)
    return StepPlan(
        token_ids=(np.arange(rows, dtype=np.int32) * 7919) % vocab_size,
        positions=context + depths,
        row_offsets=offsets,
        prefix_lens=np.full(sequences, context, np.int32),
        # Sequences share pages when there are too few: what is read and written there means nothing.
        block_tables=[_table(index, needed, pages) for index in range(sequences)],
        parents=depths - 1,
        logit_rows=np.arange(rows, dtype=np.int32),
        walks=[
            Walk(
                segment=index,
                first_logit=int(offsets[index]),
                root_row=int(offsets[index]),
                tree=_star(length - 1),
                position=context + 1,
                sampling=_GREEDY,
            )
            for index, length in enumerate(lengths)
        ],
    )


def _table(index: int, needed: int, pages: int) -> np.ndarray:
    first = index * needed % max(1, pages - needed + 1)
    return np.arange(first, min(first + needed, pages), dtype=np.int32)


def _star(nodes: int) -> TokenTree:
    return TokenTree(
        token_ids=np.arange(nodes, dtype=np.int32),
        parents=np.zeros(nodes, np.int32),
        log_probs=np.zeros(nodes, np.float32),
    )
