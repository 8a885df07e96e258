"""Best-first trees against every prefix of small marginals, enumerated."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood_kernels.build_tree import best_first, chain


def random_marginals(seed: int, depths: int, candidates: int) -> tuple[list[list[float]], list[list[int]]]:
    rng = np.random.default_rng(seed)
    logits = np.sort(rng.normal(size=(depths, candidates)) * rng.uniform(0.3, 3), axis=1)[:, ::-1]
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    tokens = np.stack([rng.permutation(1000)[:candidates] for _ in range(depths)])
    return log_probs.tolist(), tokens.tolist()


def every_prefix(log_probs: list[list[float]], token_ids: list[list[int]]) -> dict[tuple[int, ...], float]:
    prefixes = {}
    for depth in range(1, len(log_probs) + 1):
        for ranks in itertools.product(range(len(log_probs[0])), repeat=depth):
            tokens = tuple(token_ids[d][r] for d, r in enumerate(ranks))
            prefixes[tokens] = sum(log_probs[d][r] for d, r in enumerate(ranks))
    return prefixes


def paths(tokens: np.ndarray, parents: np.ndarray) -> list[tuple[int, ...]]:
    spelled: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        spelled.append((*spelled[parent], token))
    return spelled[1:]


@pytest.mark.parametrize("seed", range(40))
def test_tree_is_the_brute_force_best_prefixes(seed: int) -> None:
    log_probs, token_ids = random_marginals(seed, depths=4, candidates=5)
    ranked = sorted(every_prefix(log_probs, token_ids).items(), key=lambda item: -item[1])
    limit = int(np.random.default_rng(seed).integers(1, 257))
    tokens, parents, scores = best_first(log_probs, token_ids, limit)
    assert paths(tokens, parents) == [path for path, _ in ranked[:limit]]
    np.testing.assert_allclose(scores, [score for _, score in ranked[:limit]], atol=1e-5)


@given(
    seed=st.integers(0, 2**32 - 1),
    depths=st.integers(1, 15),
    candidates=st.integers(1, 64),
    node_limit=st.integers(1, 256),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_prefix_of_a_tree_is_a_tree(seed: int, depths: int, candidates: int, node_limit: int) -> None:
    tokens, parents, scores = best_first(*random_marginals(seed, depths, candidates), node_limit)
    total = sum(min(candidates**depth, 256) for depth in range(1, depths + 1))
    assert len(tokens) == len(parents) == len(scores) == min(node_limit, total)
    assert (parents <= np.arange(len(parents))).all()
    assert (np.diff(scores) <= 0).all()
    assert len(set(paths(tokens, parents))) == len(tokens)


@pytest.mark.parametrize("node_limit", [1, 2, 16, 255, 256])
def test_smaller_limit_is_a_prefix_of_the_larger_tree(node_limit: int) -> None:
    log_probs, token_ids = random_marginals(7, depths=7, candidates=256)
    whole = best_first(log_probs, token_ids, 256)
    part = best_first(log_probs, token_ids, node_limit)
    assert len(part[0]) == node_limit
    for ours, theirs in zip(part, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs[:node_limit])


def test_ranks_beyond_the_limit_never_enter() -> None:
    log_probs, token_ids = random_marginals(11, depths=7, candidates=300)
    short = best_first([row[:16] for row in log_probs], [row[:16] for row in token_ids], 16)
    for ours, theirs in zip(best_first(log_probs, token_ids, 16), short, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_ties_and_impossible_tokens() -> None:
    half = float(np.log(0.5))
    tokens, parents, scores = best_first([[half, half], [0.0, -np.inf]], [[5, 9], [0, 1]], 256)
    assert sorted(paths(tokens, parents)) == [(5,), (5, 0), (9,), (9, 0)]
    np.testing.assert_allclose(scores, half)


def test_chain_is_the_argmax_path() -> None:
    tokens, parents, scores = chain([-0.5, -1.0, -2.0], [0, 7, 3], 2)
    assert tokens.tolist() == [0, 7]
    assert parents.tolist() == [0, 1]
    np.testing.assert_allclose(scores, [-0.5, -1.5])
    assert len(chain([-0.5, -np.inf, -1.0], [1, 2, 3], 3)[0]) == 1
