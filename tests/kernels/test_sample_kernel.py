"""The sampling kernels in Triton's interpreter: words bit for bit, draws and kept sets equal to the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftwood_kernels.keep_bounds import KeepBounds, keep_bounds
from draftwood_kernels.sample import SamplingParams, draw, keep_set
from draftwood_kernels.sample import philox_words as reference_words
from draftwood_kernels.sample.kernel import best_tokens, philox_words, sample_rows

SEEDS = [0, 1, 2**32 + 5, 2**63, 2**64 - 1]
POSITIONS = [0, 7, 2**31, 2**32 + 3, 2**62 + 1]
GREEDY = SamplingParams(temperature=0)


def seed_bits(seeds: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))


def sample(
    logits: torch.Tensor, params: list[SamplingParams], positions: list[int], bounded: bool = False
) -> list[int]:
    temperature = torch.tensor([each.temperature for each in params])
    bounds = bounds_of(logits, params) if bounded else None
    seeds = seed_bits([each.seed for each in params])
    tokens = sample_rows(logits, temperature, seeds, torch.tensor(positions), bounds)
    assert tokens.dtype == torch.int32
    return tokens.tolist()


def drawn(logits: torch.Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    rows = logits.float().numpy()
    return [draw(row, each, position) for row, each, position in zip(rows, params, positions, strict=True)]


def bounds_of(logits: torch.Tensor, params: list[SamplingParams]) -> KeepBounds:
    return keep_bounds(
        logits,
        torch.tensor([each.temperature for each in params]),
        torch.tensor([each.top_k for each in params]),
        torch.tensor([each.top_p for each in params], dtype=torch.float64),
        torch.tensor([each.min_p for each in params], dtype=torch.float64),
    )


def kept(bounds: KeepBounds, logits: torch.Tensor) -> list[list[int]]:
    ids = torch.arange(logits.shape[1])
    tied = (logits >= bounds.tied[:, None]) & (ids <= bounds.last[:, None])
    return [row.nonzero()[:, 0].tolist() for row in (logits >= bounds.sure[:, None]) | tied]


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def some_params(count: int, seed: int) -> list[SamplingParams]:
    rng = np.random.default_rng(seed)
    return [
        SamplingParams(temperature=float(rng.choice([0, 0.3, 1, 2])), seed=int(rng.integers(2**64, dtype=np.uint64)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 5, 1023, 1024, 1029])
def test_words_equal_the_reference_bit_for_bit(count: int) -> None:
    words = philox_words(seed_bits(SEEDS), torch.tensor(POSITIONS), count).numpy().view(np.uint64)
    expected = [reference_words(seed, position, count) for seed, position in zip(SEEDS, POSITIONS, strict=True)]
    np.testing.assert_array_equal(words, np.stack(expected))


def test_words_of_a_large_vocabulary_equal_the_reference() -> None:
    words = philox_words(seed_bits([2**40 + 9]), torch.tensor([2**33]), 50257).numpy().view(np.uint64)
    np.testing.assert_array_equal(words[0], reference_words(2**40 + 9, 2**33, 50257))


@pytest.mark.parametrize(
    ("rows", "vocab"), [(1, 1), (3, 5), (40, 5), (9, 1023), (5, 1024), (5, 1025), (7, 2048), (3, 50257)]
)
def test_draws_equal_the_reference(rows: int, vocab: int) -> None:
    logits = 3 * randn(rows, vocab, seed=vocab)
    params = some_params(rows, seed=rows)
    positions = [2**32 * (row % 2) + row for row in range(rows)]
    assert sample(logits, params, positions) == drawn(logits, params, positions)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_widened(dtype: torch.dtype) -> None:
    logits = (4 * randn(6, 1500, seed=1)).to(dtype)
    params = some_params(6, seed=2)
    assert sample(logits, params, [9] * 6) == drawn(logits, params, [9] * 6)


def test_rows_of_a_wider_tensor() -> None:
    logits = randn(4, 1200, seed=3)[:, :1100]
    params = some_params(4, seed=4)
    assert sample(logits, params, [1, 2, 3, 4]) == drawn(logits, params, [1, 2, 3, 4])


def test_no_rows() -> None:
    assert sample(torch.empty(0, 10), [], []) == []
    assert sample(torch.empty(0, 5000), [], []) == []


def test_equal_logits_go_to_the_lowest_id_of_all_splits() -> None:
    logits = torch.zeros(2, 5000)
    logits[0, [1500, 1501, 4999]] = 1
    assert sample(logits, [GREEDY, GREEDY], [0, 0]) == [1500, 0]


def test_masked_tokens_and_what_is_no_number_are_never_drawn() -> None:
    logits = torch.full((4, 2500), -torch.inf)
    logits[0, 2100] = -3
    logits[1, [7, 2499]] = torch.tensor([torch.nan, -5])
    logits[2, :] = torch.nan
    params = [SamplingParams(seed=5), SamplingParams(seed=5), SamplingParams(seed=5), GREEDY]
    assert sample(logits, params, [1] * 4) == [2100, 2499, 0, 0]


def test_a_row_has_to_be_contiguous() -> None:
    with pytest.raises(ValueError, match=r"^logits:"):
        sample(torch.zeros(5, 3).T, [GREEDY] * 3, [0] * 3)


@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([1, 2, 7, 100, 1000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 5.0, 1000.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 2000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.9, 1.0]),
    temperature=st.sampled_from([0.3, 1.0]),
    ties=st.booleans(),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_bounds_keep_the_same_set(
    seed: int, vocab: int, spread: float, top_k: int, top_p: float, min_p: float, temperature: float, ties: bool
) -> None:
    row = (np.random.default_rng(seed).normal(size=vocab) * spread).astype(np.float32)
    if ties:
        row = np.round(row)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = torch.from_numpy(row)[None]
    bounded = kept(bounds_of(logits, [params]), logits)[0]
    expected = reference_set(row, params)
    # Where a prefix of equals reaches top_p exactly, the last bit of the sum decides; a token more or less is right.
    assert bounded == expected or (top_p < 1 and len(set(bounded) ^ set(expected)) == 1)


def reference_set(row: NDArray[np.float32], params: SamplingParams) -> list[int]:
    ids: list[int] = keep_set(row / np.float32(params.temperature), params).tolist()
    return ids


@pytest.mark.parametrize(
    ("row", "top_k", "expected"),
    [
        ([2, 2, 2, 2, 2], 3, [0, 1, 2]),
        ([1, 3, 2, 3, 2, 2], 4, [1, 2, 3, 4]),  # of three equals the lower two
        ([1, 3, 2, 3, 2, 2], 2, [1, 3]),  # the threshold's own class is kept whole
        ([1e-30, 0, 2e-30], 2, [0, 1]),  # unequal logits of equal weight: the lower ids, not the larger logits
        ([0, 1e-7, 3], 2, [0, 2]),  # less than float32 tells apart below the best
        ([-120, 0, -110], 2, [1, 2]),  # float64 still tells these weights apart
        ([-900, 0, -800, -900], 3, [0, 1, 2]),  # weights that underflow are equals too
        ([0, -np.inf, 1, -np.inf], 3, [0, 1, 2]),
    ],
)
def test_ties_at_the_threshold_go_to_the_lower_id(row: list[float], top_k: int, expected: list[int]) -> None:
    logits = torch.tensor([row], dtype=torch.float32)
    params = SamplingParams(top_k=top_k)
    assert kept(bounds_of(logits, [params]), logits) == [expected]
    assert reference_set(logits[0].numpy(), params) == expected
    seeds = [SamplingParams(seed=seed, top_k=top_k) for seed in range(30)]
    rows = logits.expand(30, -1)
    assert sample(rows, seeds, [0] * 30, bounded=True) == drawn(rows, seeds, [0] * 30)


@pytest.mark.parametrize("vocab", [1, 5, 2049])
@pytest.mark.parametrize("ties", [False, True])
def test_truncated_draws_equal_the_reference(vocab: int, ties: bool) -> None:
    params = [
        SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=top_k + 1)
        for temperature, top_k, top_p, min_p in [
            (1, 0, 1, 0),
            (0, 3, 0.5, 0.5),
            (0.7, 1, 1, 0),
            (0.7, 4, 1, 0),
            (1.3, 0, 0.83, 0),
            (1, 50, 0.91, 0.02),
            (2, 0, 1, 0.3),
            (1, 9999, 1e-9, 1),
        ]
    ]
    logits = 2 * randn(len(params), vocab, seed=vocab)
    if ties:
        logits = logits.round()
    positions = list(range(2**32, 2**32 + len(params)))
    assert sample(logits, params, positions, bounded=True) == drawn(logits, params, positions)


def test_parts_of_the_vocabulary_find_the_draw_of_the_whole() -> None:
    """Their scores say which part has it; parts of one split and of two, and tokens that tie across the border."""
    logits = randn(6, 1300, seed=1)
    logits[5, [40, 1200]] = 50.0
    temperature, seeds = torch.tensor([0.0, 0.7, 1.0, 1.3, 0.7, 0.0]), seed_bits([*SEEDS, 3])
    positions = torch.arange(6)
    parts = [
        best_tokens(logits[:, first:end], temperature, seeds, positions, first_token=first)
        for first, end in ((0, 200), (200, 1300))
    ]
    scores, tokens = (torch.stack(kind) for kind in zip(*parts, strict=True))
    found = tokens.gather(0, scores.argmax(dim=0)[None])[0]
    assert found.tolist() == sample_rows(logits, temperature, seeds, positions).tolist()
    assert found[5] == 40
    assert (scores.argmax(dim=0) == 1).any()


def test_a_part_begins_with_a_whole_counter() -> None:
    with pytest.raises(ValueError, match="first_token: 6 is no multiple of 4"):
        best_tokens(
            randn(1, 8, seed=0), torch.ones(1), seed_bits([1]), torch.zeros(1, dtype=torch.int64), first_token=6
        )
