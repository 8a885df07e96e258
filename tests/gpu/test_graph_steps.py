"""Padded steps, which a GPU replays as graphs, against exact ones launched kernel by kernel: the same bits.

`make test-gpu` runs it on a GPU, over 200 steps. Elsewhere kernels are interpreted, nothing is captured, and a few
steps tell whether padding shows.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftwood_kernels.placement import CPU, Placement
from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.gpu.runner import GpuRunner, StepEnd
from draftwood_verifier.gpu.step_size import StepSize, size_of
from draftwood_verifier.model.decoder import DecoderModel
from draftwood_verifier.model.loading import load_model
from draftwood_verifier.plan import StepPlan
from draftwood_wire.tree import EMPTY_TREE
from tests.conftest import ON_GPU
from tests.unit.model.targets import (
    PAGE_SIZE,
    VOCAB,
    Rows,
    chain,
    commit_plan,
    decode,
    make_plan,
    make_tree,
    write_target,
)

CHAPTERS, STEPS = (5, 40) if ON_GPU else (1, 4)
PLACEMENT = Placement(
    device=torch.device("cuda", 0) if ON_GPU else CPU.device,
    dtype=torch.bfloat16 if ON_GPU else CPU.dtype,
    row_invariant=True,
)
SAMPLINGS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.9, seed=4),
]
PAGES = 192


class Launching(GpuRunner):
    """Never pads and never captures."""

    def _replay(self, plan: StepPlan, size: StepSize) -> StepEnd:
        del size
        return self._launch(plan, size_of(plan))


class Session:
    def __init__(self, number: int, chapter: int) -> None:
        rng = np.random.default_rng([number, chapter])
        self.sampling = SAMPLINGS[number]
        self.ids = [int(token) for token in rng.integers(0, VOCAB, 5 + number)]
        self.table = [int(page) for page in np.arange(60) * 3 + number]
        self._rng = rng

    def rows(self, known: list[int], *, ahead: bool = False) -> Rows:
        """A plain row, or a tree of up to 12 nodes with the right path, as far as it is known, and wrong branches.

        ahead: of the position behind the text, whose token is not known yet.
        """
        right = known[len(self.ids) : len(self.ids) + int(self._rng.integers(0, 5))]
        tokens, parents, parent = [], [], 0
        for token in right:
            wrong = [(token + shift) % VOCAB for shift in range(1, 3)]
            tokens += [wrong[0], token, wrong[1]]
            parents += [parent, parent, max(parent, 1)]
            parent = len(tokens) - 1
        tree = make_tree(tokens, parents) if right else EMPTY_TREE
        token = VOCAB - 1 if ahead else self.ids[-1]
        return decode(token, len(self.ids) - 1 + ahead, self.table, tree, self.sampling)


def generate(
    runner: GpuRunner, chapter: int, steps: int, known: list[list[int]]
) -> tuple[list[list[int]], torch.Tensor, int]:
    """Texts, features of all rows that were kept, and accepted nodes."""
    sessions = [Session(number, chapter) for number in range(len(SAMPLINGS))]
    features, accepted = [], 0
    prefill(runner, sessions)
    for step in range(steps):
        # One session at a time, two, or all: other sizes.
        active = sessions[: 1 + step % len(sessions)]
        found = runner.execute(make_plan([s.rows(k) for s, k in zip(active, known, strict=False)]))
        for session, path in zip(active, found, strict=True):
            session.ids += path.tokens
            accepted += len(path.tokens) - 1
            features.append(torch.from_numpy(runner.features(np.array(path.rows, np.int32), (1,))))
    return [session.ids for session in sessions], torch.cat(features), accepted


def queued(runner: GpuRunner, chapter: int, steps: int) -> list[list[int]]:
    """Texts of plain rows: every step is queued behind the one before, and in another order."""
    sessions = [Session(number, chapter) for number in range(len(SAMPLINGS))]
    prefill(runner, sessions)
    before: list[int] = []
    for step in range(steps):
        order = [(step + i) % len(sessions) for i in range(len(sessions))]
        plan = make_plan([sessions[i].rows([], ahead=step > 0) for i in order])
        runner.launch(replace(plan, drawn=np.array([before.index(i) for i in order], np.int32)) if step else plan)
        if step:
            collect(runner, [sessions[i] for i in before])
        before = order
    collect(runner, [sessions[i] for i in before])
    return [session.ids for session in sessions]


def prefill(runner: GpuRunner, sessions: list[Session]) -> None:
    for session in sessions:
        runner.forward(make_plan([chain(session.ids[:-1], 0, session.table)]))
        runner.commit(commit_plan(list(range(len(session.ids) - 1)), 0, session.table))


def collect(runner: GpuRunner, sessions: list[Session]) -> None:
    for session, path in zip(sessions, runner.collect(), strict=True):
        session.ids += path.tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    return load_model(write_target("qwen3-tied", tmp_path_factory.mktemp("target")), placement=PLACEMENT)


def pool(model: DecoderModel) -> KVPool:
    found = KVPool(layers=4, pages=PAGES + 1, page_size=PAGE_SIZE, row=model.cache_row, placement=PLACEMENT)
    found.pages.fill_(torch.nan)
    return found


def featured(runner: GpuRunner) -> GpuRunner:
    runner.set_feature_layers((1,))
    return runner


@pytest.mark.usefixtures("rows_multiplied_alike")
def test_padded_steps_have_the_bits_of_exact_ones(model: DecoderModel) -> None:
    plain, exact, padded = (featured(kind(model, pool(model))) for kind in (Launching, Launching, GpuRunner))
    for chapter in range(CHAPTERS):
        straight, _, _ = generate(plain, chapter, 3 * STEPS, [[]] * 3)
        expected, expected_features, accepted = generate(exact, chapter, STEPS, straight)
        texts, features, _ = generate(padded, chapter, STEPS, straight)
        # Drafts change no token either, in this mode not even a near tie.
        for text, known in zip(expected, straight, strict=True):
            assert text[: len(known)] == known[: len(text)]
        assert accepted > STEPS
        assert texts == expected
        assert torch.equal(features, expected_features)
        for text, known in zip(queued(padded, chapter, STEPS), straight, strict=True):
            assert text[: len(known)] == known[: len(text)]
    assert (padded._graphs.captured > 2) == ON_GPU
    assert exact._graphs.captured == 0
    assert all((runner.device_s > 0) == ON_GPU for runner in (exact, padded))
