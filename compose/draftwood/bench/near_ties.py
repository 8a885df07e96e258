"""How far apart the target sees two tokens between which modes differ.

Logits are sums, and what else is in a step may change their order, so their last bits too. Where the best two tokens
are no further apart than that, greedy decoding takes either (DESIGN 5, fast mode); anywhere else a difference is a bug.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from draftwood.bench.equality import Difference
from draftwood_gateway.tokenization import load_tokenizer
from draftwood_verifier.plan import StepPlan
from draftwood_verifier.runner import load_runner

# In logits, of which rounding changes the embedded target's by 1e-5.
NEAR_TIE = 1e-4
_PAGE_SIZE = 16


def margins(target: Path, differences: Sequence[Difference]) -> list[float]:
    """By how many logits the worse of each difference's tokens is below the best of all. Loads the target."""
    tokenizer = load_tokenizer(target)
    texts = [tokenizer.encode(difference.prompt) + difference.shared for difference in differences]
    runner = load_runner(target, pages=math.ceil(max(map(len, texts)) / _PAGE_SIZE), page_size=_PAGE_SIZE)
    found = []
    for text, difference in zip(texts, differences, strict=True):
        logits = runner.forward(_whole(text))[0]
        found.append(float(logits.max() - logits[list(difference.token_ids)].min()))
    return found


def _whole(text: list[int]) -> StepPlan:
    """One chunk, and the logits of what comes after it."""
    rows = len(text)
    return StepPlan(
        token_ids=np.array(text, np.int32),
        positions=np.arange(rows, dtype=np.int32),
        row_offsets=np.array([0, rows], np.int32),
        prefix_lens=np.zeros(1, np.int32),
        block_tables=[np.arange(math.ceil(rows / _PAGE_SIZE), dtype=np.int32)],
        parents=np.arange(-1, rows - 1, dtype=np.int32),
        logit_rows=np.array([rows - 1], np.int32),
        walks=[],
    )
