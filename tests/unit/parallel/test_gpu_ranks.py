"""The GPU's runner on several ranks, its kernels in Triton's interpreter: the text is that of one rank."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.gpu.runner import GpuRunner
from draftwood_verifier.model.loading import load_model
from draftwood_verifier.parallel.groups import Group
from draftwood_verifier.parallel.linear import Share
from draftwood_verifier.plan import CommitPlan, StepPlan
from tests.unit.parallel.test_ranks import ROUNDS, SAMPLINGS, Kept, RecordingRunner, generate_together, plain, prompt


@pytest.fixture(autouse=True)
def _one_launch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are threads here, and the interpreter has one state for all."""
    lock, launch = threading.Lock(), interpreter.GridExecutor.__call__

    def locked(*arguments: Any, **options: Any) -> Any:
        with lock:
            return launch(*arguments, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", locked)


class RecordingGpuRunner(GpuRunner):
    kept: Kept
    logits_read = 0

    def commit(self, plan: CommitPlan) -> None:
        if len(plan.rows):
            self.kept.append((plan.rows.tolist(), plan.slots.tolist()))
        super().commit(plan)

    def forward(self, plan: StepPlan) -> torch.Tensor:
        RecordingGpuRunner.logits_read += 1
        return super().forward(plan)


def load(folder: Path, group: Group) -> RecordingRunner:
    model = load_model(folder, Share(group))
    pool = KVPool(layers=model.config.num_hidden_layers, pages=65, page_size=4, row=model.cache_row)
    runner: Any = RecordingGpuRunner(model, pool, group)
    runner.kept = []
    return runner  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["greedy", "plain", "top-p"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_tokens(name: str, ranks: int, target: Callable[[str], Path]) -> None:
    variant = "llama-one-kv-head"
    ids, sampling = prompt(12), SAMPLINGS[name]
    known = plain(target(variant), ids, sampling)
    RecordingGpuRunner.logits_read = 0
    text, kept = generate_together(target(variant), ranks, ids, sampling, known, load=load)
    assert len(text) == len(ids) + ROUNDS + sum(round_ % 4 for round_ in range(ROUNDS))
    assert text == known[: len(text)]
    assert kept == [kept[0], *[kept[0][:-1]] * (ranks - 1)]
    # Whole rows of logits leave the device where something truncates, and only there.
    assert RecordingGpuRunner.logits_read == (ROUNDS * ranks if sampling.truncates else 0)
