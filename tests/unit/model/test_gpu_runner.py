"""The GPU's runner, its kernels in Triton's interpreter, against transformers and against the CPU's runner."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_kernels.placement import CPU, Placement
from draftwood_kernels.sample import SamplingParams
from draftwood_kernels.step_graphs import StepGraphs
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.gpu.runner import GpuRunner
from draftwood_verifier.model.loading import load_model
from draftwood_verifier.plan import AheadRunner, CommitPlan, Path, StepPlan, Walk
from draftwood_verifier.runner import Runner
from draftwood_verifier.step_features import StepFeatures
from draftwood_wire.tree import EMPTY_TREE, TokenTree
from tests.unit.model.targets import (
    GREEDY,
    PAGE_SIZE,
    VOCAB,
    Oracle,
    Rows,
    chain,
    commit_plan,
    decode,
    make_plan,
    make_tree,
)
from tests.unit.model.test_logits import TREE, paths, prompt

PAGES, ATOL = 64, 1e-4
SAMPLED = SamplingParams(temperature=0.8, seed=2**63 + 5)
TRUNCATED = SamplingParams(temperature=1.1, top_k=20, top_p=0.9, min_p=0.01, seed=7)
TABLES = ([7, 3, 60, 1, 22], [30, 20, 25, 24, 50], [8, 9, 10, 11, 12], [40, 41, 63, 43, 44])

GpuRunners = Callable[[str], GpuRunner]


@pytest.fixture
def gpu_runner(target: Callable[[str], FilePath]) -> GpuRunners:
    """Variant -> a runner with PAGES pages and the spare one, poisoned where nothing was written."""

    def make(variant: str) -> GpuRunner:
        model = load_model(target(variant))
        layers = model.config.num_hidden_layers
        pool = KVPool(layers=layers, pages=PAGES + 1, page_size=PAGE_SIZE, row=model.cache_row)
        pool.pages.fill_(torch.nan)
        return GpuRunner(model, pool)

    return make


def prefill(runner: Runner, ids: list[int], table: list[int]) -> None:
    runner.forward(make_plan([chain(ids, 0, table)]))
    runner.commit(commit_plan(list(range(len(ids))), 0, table))


@pytest.mark.parametrize("variant", ["qwen3-tied", "llama-one-kv-head", "llama-bias", "deepseek", "gpt-oss"])
def test_logits(variant: str, gpu_runner: GpuRunners, oracle: Callable[[str], Oracle]) -> None:
    """Chunk, tree, plain row and replay in one step of exact size."""
    target, expected = gpu_runner(variant), oracle(variant)
    ids, other = prompt(14), prompt(9, seed=9)
    prefill(target, ids[:13], TABLES[0])
    segments = [
        chain(other, 0, TABLES[1]),
        decode(ids[13], 13, TABLES[0], TREE),
        decode(3, 0, TABLES[2]),
        chain(ids[4:9], 4, TABLES[0]),
    ]
    rows = [
        expected.logits(other),
        *[expected.logits(path)[-1:] for path in paths(ids)],
        expected.logits([3]),
        expected.logits(ids)[4:9],
    ]
    logits = target.forward(make_plan(segments))
    np.testing.assert_allclose(logits, np.concatenate(rows), atol=ATOL)


class Session:
    """A session that both runners serve, with trees that follow the target now and then."""

    def __init__(self, table: list[int], length: int, sampling: SamplingParams) -> None:
        self.table, self.sampling = table, sampling
        self.ids = prompt(length, seed=length)

    def rows(self, tree: TokenTree) -> Rows:
        return decode(self.ids[-1], len(self.ids) - 1, self.table, tree, self.sampling)


def guessed(cpu: Runner, session: Session, rng: np.random.Generator) -> TokenTree:
    """A random tree of which some path is right, or none."""
    rows = session.rows(EMPTY_TREE)
    ids: list[int] = []
    for _ in range(3):
        plan = make_plan([Rows(**{**vars(rows), "ids": rows.ids + ids, "parents": list(range(-1, len(ids)))})])
        logits = cpu.forward(plan)[-1]
        ids.append(int(logits.argmax()) if session.sampling.is_greedy else int(rng.integers(VOCAB)))
    wrong = (ids[0] + 1) % VOCAB
    return make_tree([wrong, ids[0], ids[1], ids[1], ids[2], 5], [0, 0, 1, 2, 4, 4])


def kept_rows(parts: list[CommitPlan]) -> CommitPlan:
    return CommitPlan(
        rows=np.concatenate([part.rows for part in parts]), slots=np.concatenate([part.slots for part in parts])
    )


def with_prompt(plan: StepPlan, ids: list[int], table: list[int]) -> StepPlan:
    """The plan and the last chunk of a prompt, which is drawn from at its last row."""
    rows, chunk = len(plan.token_ids), make_plan([chain(ids, 0, table)])
    walk = Walk(
        segment=len(plan.prefix_lens),
        first_logit=rows,
        root_row=rows + len(ids) - 1,
        tree=EMPTY_TREE,
        position=len(ids),
        sampling=GREEDY,
    )
    return StepPlan(
        token_ids=np.concatenate([plan.token_ids, chunk.token_ids]),
        positions=np.concatenate([plan.positions, chunk.positions]),
        row_offsets=np.append(plan.row_offsets, rows + len(ids)).astype(np.int32),
        prefix_lens=np.append(plan.prefix_lens, 0).astype(np.int32),
        block_tables=[*plan.block_tables, *chunk.block_tables],
        parents=np.concatenate([plan.parents, chunk.parents]),
        logit_rows=np.append(plan.logit_rows, walk.root_row).astype(np.int32),
        walks=[*plan.walks, walk],
    )


def overwrite_graph_memory(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph's step leaves in tensors of its own is gone, as it is once the next graph has run."""

    def run(graphs: StepGraphs, size: Hashable, step: Callable[[], object]) -> None:
        del graphs, size
        step()
        for rows in runner._features.values():
            rows.fill_(torch.nan)

    monkeypatch.setattr(StepGraphs, "run", run)


def test_rounds_are_those_of_the_cpu(
    runner: Callable[[str], Runner], gpu_runner: GpuRunners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees, plain rows and a prompt that joins: the same paths, features and pages, in padded and exact steps."""
    rng = np.random.default_rng(0)
    cpu, gpu = runner("qwen3-tied"), gpu_runner("qwen3-tied")
    overwrite_graph_memory(gpu, monkeypatch)
    sessions = [Session(TABLES[i], 4 + 2 * i, sampling) for i, sampling in enumerate((GREEDY, SAMPLED, TRUNCATED))]
    for each in (cpu, gpu):
        each.set_feature_layers((1, 3))
        for session in sessions:
            prefill(each, session.ids[:-1], session.table)
    accepted = 0
    for number in range(4):
        plan = make_plan(
            [
                session.rows(guessed(cpu, session, rng) if (number + i) % 3 else EMPTY_TREE)
                for i, session in enumerate(sessions)
            ]
        )
        rows = len(plan.token_ids)
        if number == 2:
            plan = with_prompt(plan, prompt(6), TABLES[3])
        found, expected = gpu.execute(plan), cpu.execute(plan)
        assert found == expected
        kept = [commit_plan(list(range(rows, len(plan.token_ids))), 0, TABLES[3])]
        for session, path in zip(sessions, expected, strict=False):
            kept.append(commit_plan(path.rows, len(session.ids) - 1, session.table))
            session.ids += path.tokens
            accepted += len(path.tokens) - 1
        told = kept_rows(kept)
        np.testing.assert_allclose(gpu.features(told.rows, (3, 1)), cpu.features(told.rows, (3, 1)), atol=ATOL)
        for each in (cpu, gpu):
            each.commit(told)
            assert not each._pool.pages[:, told.slots].isnan().any()
        torch.testing.assert_close(gpu._pool.pages[:, told.slots], cpu._pool.pages[:, told.slots], atol=ATOL, rtol=0)
    assert accepted >= 4


def drawn_by(plan: StepPlan, walks: list[int]) -> StepPlan:
    """The plan as it is when nobody knows its tokens."""
    return replace(plan, token_ids=np.full_like(plan.token_ids, VOCAB - 1), drawn=np.array(walks, np.int32))


def test_plain_rows_queued_behind_plain_rows(
    runner: Callable[[str], Runner], gpu_runner: GpuRunners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose tokens only the device knows: the same paths, features and pages as read and told row by row."""
    cpu, gpu = runner("qwen3-tied"), gpu_runner("qwen3-tied")
    overwrite_graph_memory(gpu, monkeypatch)
    assert isinstance(gpu, AheadRunner)
    assert not isinstance(cpu, AheadRunner)
    sessions = [Session(TABLES[i], 4 + 2 * i, sampling) for i, sampling in enumerate((GREEDY, SAMPLED, TRUNCATED))]
    for each in (cpu, gpu):
        each.set_feature_layers((1, 3))
        for session in sessions:
            prefill(each, session.ids[:-1], session.table)
    # Who takes part, and who drew their tokens in the step before; all three again once those are known.
    steps: list[tuple[list[int], list[int] | None]] = [
        ([0, 1, 2], None),
        ([2, 1], [2, 1]),
        ([1], [1]),
        ([0, 1, 2], None),
    ]
    plans, outcomes = [], []
    for members, walks in steps:
        taking_part = [sessions[i] for i in members]
        plan = make_plan([session.rows(EMPTY_TREE) for session in taking_part])
        plans.append(plan if walks is None else drawn_by(plan, walks))
        found = cpu.execute(plan)
        starts = [len(session.ids) - 1 for session in taking_part]
        for session, path in zip(taking_part, found, strict=True):
            session.ids += path.tokens
        kept = kept_rows(
            [commit_plan(p.rows, start, s.table) for p, start, s in zip(found, starts, taking_part, strict=True)]
        )
        cpu.commit(kept)
        outcomes.append((found, kept, cpu.features(kept.rows, (3, 1))))

    told: list[tuple[StepFeatures, NDArray[np.float32]]] = []

    def collect(found: list[Path], kept: CommitPlan, features: NDArray[np.float32]) -> None:
        assert gpu.collect() == found
        told.append((gpu.features_later(kept.rows, (3, 1)), features))
        gpu.commit(kept)

    gpu.launch(plans[0])
    for plan, outcome in zip(plans[1:], outcomes, strict=False):
        gpu.launch(plan)
        collect(*outcome)
    collect(*outcomes[-1])
    for later, features in told:
        np.testing.assert_allclose(later.read(), features, atol=ATOL)
    for session in sessions:
        slots = [session.table[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in range(len(session.ids) - 1)]
        torch.testing.assert_close(gpu._pool.pages[:, slots], cpu._pool.pages[:, slots], atol=ATOL, rtol=0)


def test_a_step_keeps_its_paths_itself(gpu_runner: GpuRunners, oracle: Callable[[str], Oracle]) -> None:
    """Without a word of the host, and nothing else: neither other branches nor rows of nobody."""
    ids, target = prompt(10), gpu_runner("qwen3-tied")
    prefill(target, ids[:-1], TABLES[0])
    straight = list(ids)
    for _ in range(3):
        straight.append(int(oracle("qwen3-tied").logits(straight)[-1].argmax()))
    tree = make_tree([1, straight[10], straight[11], 2, 3], [0, 0, 2, 0, 1])
    before = target._pool.pages.clone()
    (path,) = target.execute(make_plan([decode(ids[-1], 9, TABLES[0], tree)]))
    assert (path.tokens, path.rows) == (straight[10:], [0, 2, 3])
    slots = [TABLES[0][p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in (9, 10, 11)]
    scratch = target._pool.scratch(6)
    torch.testing.assert_close(target._pool.pages[:, slots], scratch[:, [0, 2, 3]], rtol=0, atol=0)
    others = [slot for slot in range(PAGES * PAGE_SIZE) if slot not in slots]
    torch.testing.assert_close(target._pool.pages[:, others], before[:, others], rtol=0, atol=0, equal_nan=True)
    next_row = decode(straight[-1], 12, TABLES[0])
    (path,) = target.execute(make_plan([next_row]))
    assert path.tokens == [int(oracle("qwen3-tied").logits(straight)[-1].argmax())]


def test_what_the_session_may_not_hold_is_written_nowhere(
    gpu_runner: GpuRunners, oracle: Callable[[str], Oracle]
) -> None:
    """The path goes on behind the last page of the table."""
    ids, target = prompt(8), gpu_runner("qwen3-tied")
    prefill(target, ids[:-1], TABLES[0][:2])
    straight = list(ids)
    for _ in range(2):
        straight.append(int(oracle("qwen3-tied").logits(straight)[-1].argmax()))
    before = target._pool.pages.clone()
    (path,) = target.execute(make_plan([decode(ids[-1], 7, TABLES[0][:2], make_tree([straight[8]], [0]))]))
    assert path.tokens == straight[8:]
    own = TABLES[0][1] * PAGE_SIZE + 3
    others = [slot for slot in range(PAGES * PAGE_SIZE) if slot != own]
    torch.testing.assert_close(target._pool.pages[:, others], before[:, others], rtol=0, atol=0, equal_nan=True)
    assert not target._pool.pages[:, own].isnan().any()


def test_draws_weighed_by_the_host_are_committed_by_it(target: Callable[[str], FilePath]) -> None:
    """With rejection sampling a step leaves the pages to `commit`."""
    model = load_model(target("qwen3-tied"))
    pool = KVPool(layers=4, pages=PAGES + 1, page_size=PAGE_SIZE, row=model.cache_row)
    runner = GpuRunner(model, pool, random=np.random.default_rng(0))
    plan = make_plan([decode(5, 0, [2])])
    logits = runner.forward(plan)
    assert not pool.pages.any()
    runner.commit(commit_plan([0], 0, [2]))
    assert pool.pages[:, 2 * PAGE_SIZE].any()
    assert runner.execute(plan)[0].tokens == [int(logits[0].argmax())]


@pytest.mark.usefixtures("rows_multiplied_alike")
@pytest.mark.parametrize("variant", ["qwen3-tied", "llama-bias"])
def test_deterministic_rows_have_the_bits_of_plain_decoding(variant: str, target: Callable[[str], FilePath]) -> None:
    """Every node of a tree beside others, against its own straight run, row by row and alone."""
    model = load_model(target(variant), placement=Placement(device=CPU.device, dtype=CPU.dtype, row_invariant=True))
    pool = KVPool(layers=4, pages=PAGES + 1, page_size=PAGE_SIZE, row=model.cache_row)
    runner = GpuRunner(model, pool)
    ids = prompt(9)
    prefill(runner, ids[:-1], TABLES[0])
    together = runner.forward(
        make_plan(
            [chain(prompt(5, seed=5), 0, TABLES[1]), decode(ids[-1], 8, TABLES[0], TREE), decode(1, 0, TABLES[2])]
        )
    )
    for row, path in zip(together[5:-1], paths(ids), strict=True):
        for position in range(8, len(path)):
            plain = runner.forward(make_plan([decode(path[position], position, TABLES[0])]))
            runner.commit(commit_plan([0], position, TABLES[0]))
        assert torch.equal(plain[0], row)


@pytest.mark.parametrize(("variant", "layer"), [("deepseek", "latent attention"), ("gpt-oss", "attention with sinks")])
def test_layers_without_a_row_invariant_kernel_are_refused(
    variant: str, layer: str, target: Callable[[str], FilePath]
) -> None:
    placement = Placement(device=CPU.device, dtype=CPU.dtype, row_invariant=True)
    with pytest.raises(UnsupportedConfig, match=f"{layer} has no row-invariant kernel"):
        load_model(target(variant), placement=placement)


def test_more_rows_than_scratch_held(gpu_runner: GpuRunners) -> None:
    """Graphs that know where scratch was are made again."""
    runner = gpu_runner("llama")
    before, graphs = runner._pool.scratch_rows, runner._graphs
    runner._pool._scratch = runner._pool._scratch[:, :8]
    runner.forward(make_plan([chain(prompt(9), 0, TABLES[0])]))
    assert runner._pool.scratch_rows == 16 < before
    assert runner._graphs is not graphs
