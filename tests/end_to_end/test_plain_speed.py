"""Plain decoding is a strong baseline: at least 1.5 times transformers on the same checkpoint, in the same run."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from draftwood import tuning
from draftwood.models import embedded_pair
from tests.services.processes import Services
from tests.services.requests import held_out_prompts, request

PROMPTS = 8
TOKENS = 128


class Transformers:
    """`generate` as its documentation has it, with the same number of threads as our verifier."""

    def __init__(self, target: Path) -> None:
        torch.set_num_threads(tuning.VERIFIER_THREADS)
        self.tokenizer = AutoTokenizer.from_pretrained(target)
        # Its own annotations do not fit together.
        self.model: Any = Qwen3ForCausalLM.from_pretrained(target, dtype=torch.float32)

    def generate(self, prompt: str) -> list[int]:
        inputs = self.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        output = self.model.generate(**inputs, do_sample=False, min_new_tokens=TOKENS, max_new_tokens=TOKENS)
        return [int(token) for token in output[0, inputs["input_ids"].shape[1] :]]


@pytest.fixture(scope="module")
def transformers() -> Transformers:
    return Transformers(embedded_pair().target)


def test_plain_is_faster_than_transformers(services: Services, transformers: Transformers) -> None:
    warm_up, *prompts = held_out_prompts(PROMPTS + 1)
    services.generate(request(warm_up, "plain", max_tokens=TOKENS))
    transformers.generate(warm_up)
    ratios = []
    for prompt in prompts:
        start = time.perf_counter()
        ours = services.generate(request(prompt, "plain", max_tokens=TOKENS))
        middle = time.perf_counter()
        theirs = transformers.generate(prompt)
        end = time.perf_counter()
        assert len(ours.token_ids) == len(theirs) == TOKENS
        ratios.append((end - middle) / (middle - start))
    assert median(ratios) >= 1.5, [f"{ratio:.2f}" for ratio in ratios]
