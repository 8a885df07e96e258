"""Whether a text is the same however sums are rounded: what must hold before tokens of several ranks are compared."""

import numpy as np

from draftwood_kernels.sample import SamplingParams, draw
from draftwood_verifier.runner import Runner
from tests.unit.model.targets import chain, make_plan

# Logits of one rank and of several are the same products, summed in another order. The largest difference seen was
# 1.5e-5 (3 layers, logits up to 9), and 2e-7 on the targets of tests/unit/model.
MARGIN = 1e-4


def check_steady(runner: Runner, text: list[int], prompt_len: int, sampling: SamplingParams, table: list[int]) -> None:
    """Assert that every token of the text stays what it is under noise of size MARGIN on all logits."""
    logits = runner.forward(make_plan([chain(text, 0, table)])).numpy()
    noise = np.random.default_rng(0)
    for position in range(prompt_len, len(text)):
        for _ in range(8):
            moved = logits[position - 1] + MARGIN * noise.standard_normal(logits.shape[1], np.float32)
            assert draw(moved, sampling, position) == text[position], f"position {position} is a near tie"
