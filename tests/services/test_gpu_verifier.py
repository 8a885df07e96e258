"""The whole verifier on the GPU's runner, interpreted: tokens and features are the CPU's, and drafts change none."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.gpu.runner import GpuRunner
from draftwood_verifier.model.loading import load_model
from draftwood_verifier.runner import load_runner
from draftwood_wire.tree import TokenTree
from tests.services.scripted_drafter import DraftedSession, make_tree
from tests.services.verifier_harness import Harness, run, serving
from tests.services.verifier_process import VOCAB, write_checkpoint
from tests.unit.model.targets import chain, make_plan

PROMPTS, LENGTH = [[5, 0, 9, 33, 2], [7, 7, 0, 12] * 3], 10
SAMPLINGS = [{"temperature": 0.0, "seed": 3}, {"temperature": 0.8, "seed": 3}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


def on_cpu(checkpoint: Path) -> Any:
    runner: Any = load_runner(checkpoint, pages=64, page_size=4)
    runner.step_s = 0.01  # what the harness takes for a step's cost
    return runner


def interpreted(checkpoint: Path) -> Any:
    model = load_model(checkpoint)
    runner: Any = GpuRunner(model, KVPool(layers=3, pages=65, page_size=4, row=model.cache_row))
    runner.step_s = 0.01
    return runner


async def generate(harness: Harness) -> list[list[int]]:
    calls = (harness.generate(prompt, LENGTH, **sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True))
    return [reply.tokens for reply in await asyncio.gather(*calls)]


def test_drafts_change_no_token(checkpoint: Path) -> None:
    async def body() -> None:
        async with serving(target=on_cpu(checkpoint)) as harness:
            plain = await generate(harness)
        texts = [prompt + tokens for prompt, tokens in zip(PROMPTS, plain, strict=True)]
        seen: dict[int, DraftedSession] = {}

        async def script(session: DraftedSession) -> TokenTree:
            """Knows the text; a wrong sibling comes first, and the depth at which it errs changes."""
            seen[session.session_id] = session
            length = len(session.tokens)
            text = next(text for text in texts if text[:length] == session.tokens)
            tokens = [*text[length : length + length % 4], (text[length - 1] + 1) % VOCAB]
            return make_tree([(tokens[0] + 1) % VOCAB, *tokens], [0, 0, *range(2, len(tokens) + 1)])

        async with serving(target=interpreted(checkpoint)) as harness:
            assert await generate(harness) == plain
            async with harness.drafter(script, layer_ids=(0, 2)):
                assert await generate(harness) == plain
            assert harness.service.engine.steps < 4 * LENGTH
            await harness.idle()
        assert len(seen) == 2
        for session in seen.values():
            runner = on_cpu(checkpoint)
            runner.set_feature_layers((0, 2))
            runner.forward(make_plan([chain(session.tokens, 0, list(range(16)))]))
            rows = np.array(sorted(session.features), np.int32)
            expected = runner.features(rows, (0, 2))
            np.testing.assert_allclose(np.stack([session.features[row] for row in rows]), expected, atol=1e-4)

    run(body(), limit_s=200)
