"""What a token costs in the cache, by family."""

from collections.abc import Callable

import pytest

from draftwood_verifier.runner import Runner
from tests.unit.model.targets import VARIANTS

LAYERS, FLOAT32 = 4, 4


@pytest.mark.parametrize("variant", ["deepseek", "deepseek-no-query-latent", "kimi-k2", "kimi-k25"])
def test_latent_caches_hold_one_latent_and_one_rotated_key_a_token(
    variant: str, runner: Callable[[str], Runner]
) -> None:
    sizes = VARIANTS[variant]
    numbers = sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"]
    assert runner(variant)._pool.bytes_a_token == LAYERS * numbers * FLOAT32
    assert runner(variant)._pool.pages.shape == (LAYERS, 64 * 4, 1, numbers)


def test_grouped_caches_hold_keys_and_values_of_the_kv_heads(runner: Callable[[str], Runner]) -> None:
    assert runner("qwen3-moe")._pool.bytes_a_token == LAYERS * 2 * 2 * 16 * FLOAT32
