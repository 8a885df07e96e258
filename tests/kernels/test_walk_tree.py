"""Walks by hand, and their law: one round through a tree draws exactly what the target's law says."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare

from draftwood_kernels.sample import SamplingParams, draw, gumbel
from draftwood_kernels.walk_tree import TreeWalk, walk_trees

GREEDY = SamplingParams(temperature=0)
VOCAB = 6
ROUNDS = 200_000
SEED = 20261129


def walk(tokens: list[int], parents: list[int], first_row: int = 0, sampling: SamplingParams = GREEDY) -> TreeWalk:
    return TreeWalk(
        first_row=first_row,
        token_ids=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        position=10,
        sampling=sampling,
    )


def rows_saying(*tokens: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), 50).float()


@pytest.mark.parametrize(
    ("says", "tokens", "nodes"),
    [
        ([7, 9, 9, 9, 9], [7], [0]),  # nothing accepted
        ([0, 5, 9, 9, 9], [0, 5], [0, 1]),  # token id 0 is a token
        ([4, 9, 0, 9, 9], [4, 0], [0, 2]),  # 0 is a child of node 2's sibling only
        ([4, 9, 8, 6, 2], [4, 8, 6], [0, 2, 3]),  # a sibling's path, then a bonus
        ([4, 9, 8, 3, 2], [4, 8, 3, 2], [0, 2, 3, 4]),  # to a leaf
    ],
)
def test_greedy_walks(says: list[int], tokens: list[int], nodes: list[int]) -> None:
    tree = walk([0, 4, 8, 3], [0, 0, 2, 3])
    assert walk_trees(rows_saying(*says), [tree]) == [(tokens, nodes)]


@pytest.mark.parametrize("accepted", range(16))
def test_every_length_of_a_deep_path_can_be_accepted(accepted: int) -> None:
    path = list(range(20, 35))
    says = [*path[:accepted], 9, *path[accepted:]]
    assert walk_trees(rows_saying(*says), [walk(path, list(range(15)))]) == [
        (says[: accepted + 1], list(range(accepted + 1)))
    ]


def test_walks_of_a_batch_start_at_their_own_row() -> None:
    logits = rows_saying(3, 1, 2, 7, 5, 5)
    assert walk_trees(logits, [walk([], []), walk([1, 2], [0, 1], first_row=1), walk([5], [0], first_row=4)]) == [
        ([3], [0]),
        ([1, 2, 7], [0, 1, 2]),
        ([5, 5], [0, 1]),
    ]


def test_sampled_walks_draw_at_their_depth() -> None:
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    sampling = SamplingParams(temperature=0.9, top_p=0.95, seed=4)
    first = draw(logits[0].numpy(), sampling, 10)
    second = draw(logits[2].numpy(), sampling, 11)
    tree = walk([(first + 1) % 50, first, second], [0, 0, 2], sampling=sampling)
    third = draw(logits[3].numpy(), sampling, 12)
    assert walk_trees(logits, [tree]) == [([first, second, third], [0, 2, 3])]


@pytest.mark.parametrize("shared_noise", [True, False], ids=["noise", "no-noise"])
@pytest.mark.parametrize("children", [2, 3])
def test_law_of_one_round(children: int, shared_noise: bool) -> None:
    """Token pairs of 200,000 rounds against the target's law p(a) p(b | a).

    The target has a law of its own behind each token; the drafter's law is another. Each round is one position pair
    of a seed. A walk that ends after one token gets its second as the next round would draw it.
    """
    rng = np.random.default_rng(7)
    root = rng.normal(size=VOCAB).astype(np.float32)
    after = rng.normal(size=(VOCAB, VOCAB)).astype(np.float32)
    drafted = torch.log_softmax(torch.from_numpy(root + rng.normal(size=VOCAB).astype(np.float32) / 2), 0).numpy()
    sampling = SamplingParams(temperature=0.8, seed=SEED)
    counts = np.zeros((VOCAB, VOCAB))
    accepted = 0
    for position in range(0, 2 * ROUNDS, 2):
        chosen = _children(drafted, sampling, position, children, shared_noise)
        logits = torch.from_numpy(np.stack([root, *after[chosen]]))
        tree = TreeWalk(
            first_row=0,
            token_ids=chosen.astype(np.int32),
            parents=np.zeros(children, np.int32),
            position=position,
            sampling=sampling,
        )
        tokens, _ = walk_trees(logits, [tree])[0]
        accepted += len(tokens) == 2
        second = tokens[1] if len(tokens) == 2 else draw(after[tokens[0]], sampling, position + 1)
        counts[tokens[0], second] += 1
    first_law = _softmax(root / 0.8)
    law = first_law[:, None] * np.stack([_softmax(row / 0.8) for row in after])
    assert chisquare(counts.ravel(), law.ravel() * ROUNDS).pvalue > 0.001
    assert accepted / ROUNDS > (0.85 if shared_noise else 0.3)


def _children(
    drafted: NDArray[np.float32], sampling: SamplingParams, position: int, count: int, shared_noise: bool
) -> NDArray[np.intp]:
    scores = drafted / np.float32(sampling.temperature)
    if shared_noise:
        scores = scores + gumbel(sampling.seed, position, VOCAB)
    return np.argsort(-scores)[:count]


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64))
    law: NDArray[np.float64] = weights / weights.sum()
    return law
