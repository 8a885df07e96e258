"""Candidates and trees from the device's kernels, interpreted, against the reference and the drafter's tree builder."""

import numpy as np
import pytest
import torch

from draftwood_kernels import build_tree as op
from draftwood_kernels.build_tree import Candidates, DraftTrees, TreeWish, grow_trees, kernel

# A sum of thousands of exponentials in float32, added up in another order.
LOG_PROB_ERROR = 2e-5


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def check_candidates(logits: torch.Tensor, count: int) -> Candidates:
    ours, expected = kernel.top_candidates(logits, count), op.top_candidates(logits, count)
    assert torch.equal(ours.token_ids, expected.token_ids)
    torch.testing.assert_close(ours.log_probs, expected.log_probs, rtol=1e-6, atol=LOG_PROB_ERROR, equal_nan=True)
    assert ours.log_probs.dtype == torch.float32
    return ours


def check_trees(candidates: Candidates, limits: list[int], chains: list[int], most_nodes: int) -> DraftTrees:
    """Nodes, parents, float32 scores and counts are the reference's, bit for bit."""
    ours = kernel.build_trees(candidates, ints(limits), ints(chains), most_nodes)
    expected = op.build_trees(candidates, ints(limits), ints(chains), most_nodes)
    assert torch.equal(ours.counts, expected.counts)
    for session, nodes in enumerate(expected.counts.tolist()):
        for mine, theirs in zip(arrays(ours, session, nodes), arrays(expected, session, nodes), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    return ours


def arrays(trees: DraftTrees, session: int, nodes: int) -> list[np.ndarray]:
    return [part[session, :nodes].numpy() for part in (trees.token_ids, trees.parents, trees.log_probs)]


@pytest.mark.parametrize("count", [1, 3, 16, 64])
@pytest.mark.parametrize("vocab", [64, 1000, 2048, 2049, 4500])
def test_candidates(vocab: int, count: int) -> None:
    check_candidates(3 * randn(3, vocab, seed=vocab), count)


@pytest.mark.parametrize(("vocab", "count"), [(160_000, 16), (33_000, 256), (7, 7), (1, 1)])
def test_candidates_of_all_sizes(vocab: int, count: int) -> None:
    check_candidates(3 * randn(1, vocab, seed=count), count)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_candidates_of_16_bit_logits(dtype: torch.dtype) -> None:
    check_candidates((3 * randn(2, 2500, seed=1)).to(dtype), 40)


def test_equals_go_to_the_lower_id_across_blocks() -> None:
    logits = torch.zeros(3, 5000)
    logits[0, [4999, 2100, 2047, 3]] = 1
    logits[1] = randn(5000, seed=2).round()
    logits[2, ::2] = -0.0
    assert check_candidates(logits, 6).token_ids[0].tolist() == [3, 2047, 2100, 4999, 0, 1]
    assert check_candidates(logits, 6).token_ids[2].tolist() == [0, 1, 2, 3, 4, 5]


def test_rows_of_a_wider_tensor_and_no_rows() -> None:
    check_candidates(randn(4, 3000, seed=3)[:, 100:2900], 9)
    assert kernel.top_candidates(torch.empty(0, 70), 9).token_ids.shape == (0, 9)


def test_masked_tokens_are_candidates_of_no_probability() -> None:
    logits = torch.full((1, 2100), -torch.inf)
    logits[0, [5, 2099]] = torch.tensor([1.0, 2.0])
    ours = check_candidates(logits, 4)
    assert ours.token_ids[0, :2].tolist() == [2099, 5]
    assert ours.log_probs[0, 2:].tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf, None])
def test_a_row_that_is_not_finite_ends_its_session_and_no_other(bad: float | None) -> None:
    logits = randn(6, 2100, seed=4)
    logits[3] = -torch.inf
    if bad is not None:
        logits[3] = randn(2100, seed=5)
        logits[3, 2060] = bad
    with np.errstate(invalid="ignore"):  # the interpreter computes with NumPy, which warns
        candidates = kernel.top_candidates(logits, 8)
    assert candidates.log_probs[3].isnan().all()
    assert check_trees(candidates, [8, 8, 8], [0, 0, 1], 8).counts.tolist() == [8, 0, 2]


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_of_trees_and_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sessions, depths = int(rng.integers(1, 6)), int(rng.integers(1, 16))
    most_nodes = int(rng.choice([1, 7, 16, 33, 64]))
    logits = float(rng.uniform(0.3, 4)) * randn(sessions * depths, 200, seed=seed)
    if seed % 2:
        logits = logits.round()  # many ties
    candidates = op.top_candidates(logits, int(rng.integers(1, most_nodes + 1)))
    limits = rng.integers(1, most_nodes + 9, sessions).tolist()
    check_trees(candidates, limits, rng.integers(0, 2, sessions).tolist(), most_nodes)


def test_256_nodes_and_255_depths() -> None:
    check_trees(op.top_candidates(randn(15, 400, seed=6), 256), [256], [0], 256)
    check_trees(op.top_candidates(20 * randn(255, 5, seed=7), 5), [256], [1], 256)


def test_equal_paths_come_in_the_order_of_their_birth() -> None:
    half = float(np.log(0.5))
    log_probs = torch.tensor([[half, half], [half, half], [half, half]])
    candidates = Candidates(log_probs=log_probs, token_ids=torch.arange(6, dtype=torch.int32).view(3, 2))
    check_trees(candidates, [14], [0], 14)


def test_impossible_tokens_never_enter() -> None:
    log_probs = torch.tensor([[-0.5, -1.0], [0.0, -torch.inf], [1e-7, -torch.inf]])
    candidates = Candidates(log_probs=log_probs, token_ids=torch.arange(6, dtype=torch.int32).view(3, 2))
    assert check_trees(candidates, [64], [0], 64).counts.tolist() == [6]
    assert check_trees(candidates, [64], [1], 64).counts.tolist() == [3]


@pytest.mark.parametrize("seed", range(3))
def test_trees_are_those_that_are_built_on_the_host(seed: int) -> None:
    """Log-probabilities come from another summation, so trees agree where no two paths are closer than its error."""
    depths = 7
    wishes = [
        TreeWish(depths=depths, position=9, is_chain=is_chain, node_limit=limit)
        for is_chain, limit in ((False, 16), (True, 5))
    ]
    logits = 4 * randn(2 * depths, 3000, seed=seed)
    candidates = kernel.top_candidates(logits, 16)
    trees = kernel.build_trees(candidates, ints([16, 5]), ints([0, 1]), 16)
    for session, expected in enumerate(grow_trees(op.top_candidates(logits, 16), wishes)):
        assert expected is not None
        tokens, parents, log_probs = arrays(trees, session, int(trees.counts[session]))
        np.testing.assert_array_equal(tokens, expected[0])
        np.testing.assert_array_equal(parents, expected[1])
        np.testing.assert_allclose(log_probs, expected[2], atol=1e-4)


@pytest.mark.parametrize("count", [0, 257, 11])
def test_bad_counts_are_named(count: int) -> None:
    with pytest.raises(ValueError, match=r"^count:"):
        kernel.top_candidates(torch.zeros(2, 10 if count == 11 else 1000), count)


def test_trees_too_large_are_named() -> None:
    candidates = op.top_candidates(torch.zeros(2, 10), 3)
    with pytest.raises(ValueError, match=r"^most_nodes: 257"):
        kernel.build_trees(candidates, ints([4]), ints([0]), 257)


def test_no_sessions() -> None:
    candidates = Candidates(log_probs=torch.empty(0, 3), token_ids=torch.empty(0, 3, dtype=torch.int32))
    assert kernel.build_trees(candidates, ints([]), ints([]), 8).counts.shape == (0,)
