"""Noise words against NumPy's generator and the layout of DESIGN 3; what may be drawn against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood_kernels.sample import (
    SamplingParams,
    draw,
    gumbel,
    gumbel_at,
    keep_set,
    philox_words,
    philox_words_at,
)

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**31)


def words_by_hand(seed: int, position: int, token: int) -> int:
    """Philox4x64-10 in plain integers: lane token mod 4 of counter (token div 4, position, 0, 0), key (seed, 0)."""
    word = 2**64
    counter, key = [token // 4, position, 0, 0], [seed, 0]
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [
            second // word ^ counter[1] ^ key[0],
            second % word,
            first // word ^ counter[3] ^ key[1],
            first % word,
        ]
        key = [(key[0] + 0x9E3779B97F4A7C15) % word, (key[1] + 0xBB67AE8584CAA73B) % word]
    return counter[token % 4]


@given(seed=SEEDS, position=POSITIONS, count=st.integers(1, 300))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_words_have_the_known_layout(seed: int, position: int, count: int) -> None:
    words = philox_words(seed, position, count)
    assert words.tolist() == [words_by_hand(seed, position, token) for token in range(count)]
    assert words.dtype == np.uint64


@given(seed=SEEDS, position=POSITIONS)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_words_of_some_tokens_are_those_of_all(seed: int, position: int) -> None:
    ids = np.array([0, 1, 2, 3, 4, 77, 1023, 150000])
    np.testing.assert_array_equal(philox_words_at(seed, position, ids), philox_words(seed, position, 150001)[ids])
    np.testing.assert_array_equal(gumbel_at(seed, position, ids, 150001), gumbel(seed, position, 150001)[ids])


def test_words_equal_numpy_started_one_lower() -> None:
    generator = np.random.Philox(counter=np.array([2**64 - 1, 4, 0, 0], np.uint64), key=np.array([9, 0], np.uint64))
    np.testing.assert_array_equal(philox_words(9, 5, 64), generator.random_raw(64))


def test_noise_is_finite_and_gumbel() -> None:
    noise = gumbel(3, 7, 200_000)
    assert noise.dtype == np.float32
    assert np.isfinite(noise).all()
    assert abs(noise.mean() - np.euler_gamma) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02


def kept_by_brute_force(scaled: np.ndarray, params: SamplingParams) -> list[int]:
    probabilities = np.exp(scaled.astype(np.float64) - scaled.max())
    probabilities /= probabilities.sum()
    ranked = sorted(range(len(scaled)), key=lambda token: (-probabilities[token], token))
    if params.top_k:
        ranked = ranked[: params.top_k]
    if params.top_p < 1:
        total, mass, nucleus = sum(probabilities[token] for token in ranked), 0.0, []
        for token in ranked:
            nucleus.append(token)
            mass += probabilities[token]
            if mass >= params.top_p * total:
                break
        ranked = nucleus
    return sorted(token for token in ranked if probabilities[token] >= params.min_p * probabilities.max())


@given(
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([1, 2, 7, 100, 1000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 2000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    ties=st.booleans(),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_keep_set_equals_brute_force(
    seed: int, vocab: int, spread: float, top_k: int, top_p: float, min_p: float, ties: bool
) -> None:
    logits = (np.random.default_rng(seed).normal(size=vocab) * spread).astype(np.float32)
    if ties:
        logits = np.round(logits)
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    kept = keep_set(logits, params).tolist()
    expected = kept_by_brute_force(logits, params)
    # Where a prefix of equals reaches top_p exactly, the last bit of the sum decides; a token more or less is right.
    assert kept == expected or (top_p < 1 and len(set(kept) ^ set(expected)) == 1)


def test_ties_go_to_the_lower_id() -> None:
    logits = np.array([1, 3, 3, 0, 3], np.float32)
    assert draw(logits, SamplingParams(temperature=0), 5) == 1
    assert keep_set(logits, SamplingParams(top_k=2)).tolist() == [1, 2]
    assert keep_set(logits, SamplingParams(top_k=1)).tolist() == [1]


def test_draws_are_argmax_of_logits_over_temperature_plus_noise() -> None:
    logits = np.random.default_rng(0).normal(size=500).astype(np.float32)
    for position in range(50):
        perturbed = logits / np.float32(0.7) + gumbel(11, position, 500)
        assert draw(logits, SamplingParams(temperature=0.7, seed=11), position) == perturbed.argmax()
        params = SamplingParams(temperature=0.7, seed=11, top_k=10)
        kept = keep_set(logits / np.float32(0.7), params)
        assert draw(logits, params, position) == kept[perturbed[kept].argmax()]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_bad_parameters_are_named(fields: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}:"):
        SamplingParams(**fields)  # type: ignore[arg-type]
