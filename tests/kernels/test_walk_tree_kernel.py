"""The walk kernel in Triton's interpreter against the reference, whose rows say the sampled tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftwood_kernels.sample import SamplingParams
from draftwood_kernels.walk_tree import TreeWalk, on_device, walk_trees
from draftwood_kernels.walk_tree.kernel import FlatTrees, WalkedPaths, walk_sampled

GREEDY = SamplingParams(temperature=0)
POISON = -77
Path = tuple[list[int], list[int]]


def tree(tokens: list[int], parents: list[int], first_row: int = 0) -> TreeWalk:
    return TreeWalk(
        first_row=first_row,
        token_ids=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        position=0,
        sampling=GREEDY,
    )


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def walked(sampled: list[int], trees: list[TreeWalk], most_nodes: int = 256, places: int = 257) -> list[Path]:
    """(tokens, nodes) of each tree; what lies past a path has to stay as it was."""
    flat = FlatTrees(
        first_rows=ints([each.first_row for each in trees]),
        offsets=ints([0, *np.cumsum([len(each.token_ids) for each in trees], dtype=int).tolist()]),
        token_ids=ints([token for each in trees for token in each.token_ids.tolist()]),
        parents=ints([parent for each in trees for parent in each.parents.tolist()]),
    )
    nodes, tokens = (torch.full((len(trees), places), POISON, dtype=torch.int32) for _ in range(2))
    lengths = torch.full((len(trees),), POISON, dtype=torch.int32)
    walk_sampled(ints(sampled), flat, most_nodes, WalkedPaths(nodes=nodes, tokens=tokens, lengths=lengths))
    for row, length in enumerate(lengths.tolist()):
        assert (nodes[row, length:] == POISON).all()
        assert (tokens[row, length:] == POISON).all()
    return [
        (tokens[row, :length].tolist(), nodes[row, :length].tolist()) for row, length in enumerate(lengths.tolist())
    ]


def expected(sampled: list[int], trees: list[TreeWalk]) -> list[Path]:
    rows = torch.nn.functional.one_hot(torch.tensor(sampled)).float()
    return walk_trees(rows, trees)


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
def test_walks_by_hand(says: list[int], tokens: list[int], nodes: list[int]) -> None:
    assert walked(says, [tree([0, 4, 8, 3], [0, 0, 2, 3])]) == [(tokens, nodes)]


def test_empty_trees_draw_the_bonus_alone() -> None:
    assert walked([0], [tree([], [])], most_nodes=0, places=1) == [([0], [0])]
    trees = [tree([], []), tree([0], [0], first_row=1), tree([], [], first_row=3)]
    assert walked([5, 0, 3, 0], trees) == [([5], [0]), ([0, 3], [0, 1]), ([0], [0])]


def test_no_trees() -> None:
    assert walked([1], []) == []


@pytest.mark.parametrize("most_nodes", [1, 16, 17, 64, 256])
def test_a_chain_is_walked_to_its_end(most_nodes: int) -> None:
    sampled = [node % 3 for node in range(most_nodes + 1)]
    chain = tree(sampled[:-1], list(range(most_nodes)))
    paths = walked(sampled, [chain], most_nodes, most_nodes + 1)
    assert paths == [(sampled, list(range(most_nodes + 1)))]
    assert paths == expected(sampled, [chain])


def test_entries_of_the_next_tree_are_not_children() -> None:
    trees = [tree([4], [0]), tree([9, 9, 9], [0, 1, 2], first_row=2)]
    assert walked([9, 9, 9, 9, 9, 9], trees) == [([9], [0]), ([9] * 4, [0, 1, 2, 3])]


def test_a_path_is_cut_where_the_places_end() -> None:
    assert walked([1, 1, 1, 1], [tree([1, 1, 1], [0, 1, 2])], places=2) == [([1, 1], [0, 1])]


def test_a_ring_is_never_reached() -> None:
    assert walked([1, 1, 1], [tree([1], [1]), tree([1, 1], [2, 1])]) == [([1], [0]), ([1], [0])]


@pytest.mark.parametrize("seed", range(12))
def test_random_trees_equal_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(1, 6))
    trees, rows = [], int(rng.integers(0, 4))
    for count in rng.choice([0, 1, 2, 7, 31, 64, 255, 256], size=int(rng.integers(1, 9))).tolist():
        parents = [int(rng.integers(max(0, node - 4), node + 1)) for node in range(count)]
        trees.append(tree(rng.integers(0, vocab, count).tolist(), parents, first_row=rows))
        rows += count + 1 + int(rng.integers(0, 3))  # rows between trees belong to nobody
    sampled = rng.integers(0, vocab, rows).tolist()
    assert walked(sampled, trees) == expected(sampled, trees)


@pytest.mark.parametrize("most_nodes", [-1, 257])
def test_bad_sizes_are_named(most_nodes: int) -> None:
    with pytest.raises(ValueError, match=r"^most_nodes:"):
        walked([1], [tree([], [])], most_nodes)


def test_a_path_needs_a_place() -> None:
    with pytest.raises(ValueError, match=r"^paths:"):
        walked([1], [tree([], [])], places=0)


@pytest.mark.parametrize("seed", range(4))
def test_lists_from_the_device_are_those_of_the_reference(seed: int) -> None:
    """Sampling of all kinds in one batch; trees hold the tokens that are likely, so that walks go deep."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(60, 9)).astype(np.float32) * 2)
    kinds = [
        GREEDY,
        SamplingParams(temperature=0.7, seed=seed),
        SamplingParams(temperature=1.2, seed=2**63 + seed, top_k=4),
        SamplingParams(temperature=1.0, seed=seed, top_p=0.8, min_p=0.01),
    ]
    trees, rows = [], 0
    for sampling in kinds[: 1 + seed % 4]:
        count = int(rng.integers(0, 12))
        parents = [int(rng.integers(max(0, node - 3), node + 1)) for node in range(count)]
        shape = tree(rng.integers(0, 9, count).tolist(), parents, first_row=rows)
        trees.append(replace(shape, position=int(rng.integers(0, 2**40)), sampling=sampling))
        rows += count + 1 + int(rng.integers(0, 2))  # rows between trees belong to nobody
    assert on_device.walk_trees(logits, trees) == walk_trees(logits, trees)
    assert on_device.walk_trees(logits, []) == []
