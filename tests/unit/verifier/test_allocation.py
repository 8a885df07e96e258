"""The chosen nodes are a tree in every tree, and no other choice of as many is better: brute force says so."""

import itertools

import numpy as np
import pytest

from draftwood_verifier.budget.allocation import Offer, allocate
from draftwood_wire.tree import TokenTree
from tests.unit.verifier.trees import random_tree

EDGES = (0, 2, 4, 8, 16)


def offer(seconds: list[float], *, sequences: int, pinned_nodes: int, wait_s: float) -> Offer:
    return Offer(sequences=sequences, pinned_nodes=pinned_nodes, edges=EDGES, seconds=seconds, wait_s=wait_s)


def path_scores(tree: TokenTree, random: np.random.Generator) -> list[float]:
    scores = [1.0]
    for parent in tree.parents.tolist():
        scores.append(scores[parent] * float(random.choice([1.0, 0.7, 0.4])))
    return scores[1:]


def is_closed(tree: TokenTree, entries: set[int]) -> bool:
    return all(tree.parents[entry] == 0 or int(tree.parents[entry]) - 1 in entries for entry in entries)


def best_rate(trees: list[TokenTree], scores: list[list[float]], seconds: list[float], wait_s: float) -> float:
    """Over all sets of nodes that are closed under parents and whose number is an edge, none, or all."""
    nodes = [(t, entry) for t, tree in enumerate(trees) for entry in range(len(tree))]
    best = 0.0
    for count in {0, len(nodes), *(e for e in EDGES if e < len(nodes))}:
        for chosen in itertools.combinations(nodes, count):
            if all(is_closed(tree, {e for owner, e in chosen if owner == t}) for t, tree in enumerate(trees)):
                gain = sum(scores[t][entry] for t, entry in chosen)
                took = float(np.interp(count, EDGES, seconds)) + wait_s
                best = max(best, (len(trees) + gain) / took)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_other_choice_gives_more_tokens_a_second(seed: int) -> None:
    random = np.random.default_rng(seed)
    trees = [random_tree(random, int(n)) for n in random.integers(1, 6, size=2)]
    scores = [path_scores(tree, random) for tree in trees]
    seconds = (np.cumsum(random.exponential(1.0, len(EDGES))) + 1).tolist()
    allocation = allocate(scores, offer(seconds, sequences=2, pinned_nodes=0, wait_s=0.5))
    for tree, entries in zip(trees, allocation.entries, strict=True):
        assert is_closed(tree, set(entries))
        assert entries == sorted(entries)
    assert sum(len(entries) for entries in allocation.entries) == allocation.nodes
    assert allocation.rate == pytest.approx(best_rate(trees, scores, seconds, 0.5))


def test_nodes_that_cost_more_than_they_bring_are_left_out() -> None:
    steep = [1.0, 9, 19, 39, 79]
    allocation = allocate([[0.9, 0.8, 0.7]], offer(steep, sequences=1, pinned_nodes=0, wait_s=0.0))
    assert (allocation.nodes, [len(e) for e in allocation.entries], allocation.tokens) == (0, [0], 1.0)


def test_a_step_that_costs_the_same_anyway_looks_at_all() -> None:
    flat = [1.0] * 5
    allocation = allocate([[0.5, 0.1], [0.9]], offer(flat, sequences=2, pinned_nodes=0, wait_s=0.1))
    assert allocation.nodes == 3
    assert allocation.tokens == pytest.approx(3.5)


def test_nodes_of_pinned_sequences_move_the_others_up_the_curve() -> None:
    # Two more nodes are free up to 4, dear from there on.
    seconds = [1.0, 1.0, 1.0, 5.0, 20.0]
    free = allocate([[0.5, 0.5]], offer(seconds, sequences=1, pinned_nodes=0, wait_s=0.0))
    dear = allocate([[0.5, 0.5]], offer(seconds, sequences=1, pinned_nodes=4, wait_s=0.0))
    assert (free.nodes, dear.nodes) == (2, 0)


def test_no_trees_at_all() -> None:
    allocation = allocate([], offer([1.0] * 5, sequences=3, pinned_nodes=0, wait_s=0.0))
    assert (allocation.nodes, allocation.entries, allocation.rate) == (0, [], 3.0)
