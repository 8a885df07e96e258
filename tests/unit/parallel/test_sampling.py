"""Draws from sharded logits are the draws from whole ones, token for token, and no rank gathers a row."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftwood_kernels.sample import SamplingParams
from draftwood_kernels.walk_tree import TreeWalk, walk_trees
from draftwood_verifier.parallel.groups import Group
from draftwood_verifier.parallel.linear import Share
from draftwood_verifier.parallel.sampling import NARROW, Paths, ShardedSampler
from tests.unit.parallel.ranks import CountingGroup, on_ranks

PARAMS = {
    "greedy": SamplingParams(temperature=0, top_k=5),
    "plain": SamplingParams(temperature=0.8),
    "hot": SamplingParams(temperature=50.0, top_p=0.7),
    "cold": SamplingParams(temperature=1e-3, top_k=7, top_p=0.9),
    "top-1": SamplingParams(temperature=0.8, top_k=1),
    "narrow": SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "narrowest": SamplingParams(temperature=1.5, top_k=NARROW),
    "wide": SamplingParams(temperature=1.5, top_k=NARROW + 1, top_p=0.95),
    "wide-all": SamplingParams(temperature=1.5, top_k=4099),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9),
    "tiny-top-p": SamplingParams(temperature=0.8, top_p=1e-4),
    "top-p-near-1": SamplingParams(temperature=1.0, top_p=1 - 2**-53),
    "min-p": SamplingParams(temperature=1.2, min_p=0.05),
    "min-p-1": SamplingParams(temperature=1.2, min_p=1.0),
}


def rows(kind: str, count: int, vocab: int) -> NDArray[np.float32]:
    logits = 3 * np.random.default_rng(vocab).standard_normal((count, vocab), np.float32)
    if kind == "ties":
        return np.round(logits)
    if kind == "flat":
        return np.zeros_like(logits)
    if kind == "excluded":
        logits[:, ::3] = -np.inf
    if kind == "peaked":
        logits[:, vocab // 2] += 60
    return logits


def walks(params: SamplingParams, count: int) -> list[TreeWalk]:
    """`count` rows: first a tree of four nodes, then plain ones, each with its own seed and position."""
    params_of = [SamplingParams(**{**vars(params), "seed": 2**64 - 1 - row}) for row in range(count)]
    nobody = np.zeros(0, np.int32)
    tree = TreeWalk(
        first_row=0,
        token_ids=np.array([1, 2, 3, 4], np.int32),
        parents=np.array([0, 0, 1, 3], np.int32),
        position=7,
        sampling=params_of[0],
    )
    plain = [
        TreeWalk(first_row=row, token_ids=nobody, parents=nobody, position=row * row, sampling=params_of[row])
        for row in range(5, count)
    ]
    return [tree, *plain]


def draw_together(logits: NDArray[np.float32], asked: list[TreeWalk], ranks: int, kind: type[Group] = Group) -> Paths:
    vocab = logits.shape[1]

    def act(group: Group) -> Paths:
        held = Share(group).vocabulary(vocab)
        return ShardedSampler(group, held, vocab).walk(torch.from_numpy(logits[:, held].copy()), asked)

    first, *others = on_ranks(ranks, act, group_type=kind)
    assert others == [[([], [])] * len(asked)] * (ranks - 1)
    return first


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("kind", ["random", "ties", "flat", "excluded", "peaked"])
@pytest.mark.parametrize(("vocab", "ranks"), [(37, 4), (4099, 2), (20001, 3)])
def test_the_same_tokens_as_from_whole_rows(name: str, kind: str, vocab: int, ranks: int) -> None:
    logits, asked = rows(kind, 24, vocab), walks(PARAMS[name], 24)
    assert draw_together(logits, asked, ranks) == walk_trees(torch.from_numpy(logits), asked)


def test_a_walk_goes_down_the_tree() -> None:
    logits = rows("random", 5, 64)
    asked = walks(PARAMS["plain"], 5)
    tokens = walk_trees(torch.from_numpy(logits), asked)[0][0]
    deep = TreeWalk(
        first_row=0,
        token_ids=np.array([(tokens[0] + 1) % 64, tokens[0]], np.int32),
        parents=np.array([0, 0], np.int32),
        position=7,
        sampling=asked[0].sampling,
    )
    path = draw_together(logits, [deep], 2)[0]
    assert path == walk_trees(torch.from_numpy(logits), [deep])[0]
    assert path[1] == [0, 2]


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_broken_logits_break_no_rank(name: str, broken: float) -> None:
    """A row of one request may be hopeless; it gets some token, and the neighbours theirs."""
    logits, asked = rows("random", 8, 300), walks(PARAMS[name], 8)
    expected = walk_trees(torch.from_numpy(logits), asked)
    logits[6] = broken
    logits[7, 5] = np.nan
    drawn = draw_together(logits, asked, 3)
    assert drawn[:2] == expected[:2]
    assert all(0 <= path[0][0] < 300 for path in drawn[2:])


@pytest.mark.parametrize(
    ("name", "a_row"), [("greedy", 2), ("plain", 2), ("narrow", 40), ("top-p", 512), ("wide", 512)]
)
def test_no_rank_sees_a_whole_row(name: str, a_row: int) -> None:
    CountingGroup.largest = 0
    draw_together(rows("flat", 6, 60_000), walks(PARAMS[name], 6), 2, CountingGroup)
    assert CountingGroup.largest == 6 * a_row
