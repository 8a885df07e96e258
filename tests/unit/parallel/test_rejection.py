"""Tokens of rejection sampling have the target's law, whatever the draft's is, and no rank gathers a row."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2

from draftwood_kernels.build_tree import TreeWish
from draftwood_kernels.sample import SamplingParams, keep_set
from draftwood_kernels.walk_tree import TreeWalk
from draftwood_verifier.parallel.draft_trees import DraftTreeBuilder
from draftwood_verifier.parallel.groups import Alone, Group, Ranks
from draftwood_verifier.parallel.linear import Share
from draftwood_verifier.parallel.rejection import DrawnWalk, RejectionSampler
from draftwood_wire.tree import TokenTree
from tests.unit.parallel.ranks import CountingGroup, on_ranks

VOCAB = 8
DEPTHS = 2
NODES = 5
TREES = 2000  # that are drawn and walked together
SAMPLING = SamplingParams(temperature=0.7)
# Logits of the token after the root, and of the one after each of those.
TARGET = 1.5 * np.random.default_rng(1).standard_normal((1 + VOCAB, VOCAB)).astype(np.float32)
DRAFT = (TARGET[:DEPTHS] + np.random.default_rng(2).standard_normal((DEPTHS, VOCAB))).astype(np.float32)
WISH = TreeWish(depths=DEPTHS, position=9, is_chain=False, node_limit=NODES, temperature=SAMPLING.temperature, seed=1)
Path = tuple[int, ...]


def law(row: int, sampling: SamplingParams) -> NDArray[np.float64]:
    """What plain sampling gives after the root (row 0) or after token row - 1."""
    scaled = TARGET[row] / np.float32(sampling.temperature)
    kept = keep_set(scaled, sampling)
    weights = np.zeros(VOCAB)
    weights[kept] = np.exp(scaled[kept].astype(np.float64))
    return weights / weights.sum()


@dataclass
class Drawing:
    """One rank that builds trees from its part of DRAFT and walks them over its part of TARGET."""

    ranks: Ranks
    vocabulary: slice
    builder: DraftTreeBuilder
    sampler: RejectionSampler
    wish: TreeWish
    sampling: SamplingParams

    def walk_trees(self, count: int, altered: float = 1.0) -> list[Path]:
        """The tokens of each walk; `altered` tells the sampler of another draft than the one that was drawn from."""
        logits = torch.from_numpy(np.tile(DRAFT[:, self.vocabulary], (count, 1)))
        trees = self.share(self.builder.build(logits, [self.wish] * count))
        walks, rows = [], []
        for index, tree in enumerate(trees):
            drawn = TreeWalk(
                first_row=len(rows),
                token_ids=tree.token_ids,
                parents=tree.parents,
                position=self.wish.position,
                sampling=self.sampling,
            )
            walks.append(DrawnWalk(tree=drawn, draft_row=DEPTHS * index))
            rows += [0, *(1 + tree.token_ids).tolist()]
        target = torch.from_numpy(TARGET[rows][:, self.vocabulary])
        return [tuple(tokens) for tokens, _ in self.sampler.walk(target, altered * self.builder.laws, walks)]

    def share(self, trees: list[TokenTree | None]) -> list[TokenTree]:
        """The trees of rank 0; a step plan brings them to the others."""
        mine = np.zeros((len(trees), 2, NODES))
        for index, tree in enumerate(trees):
            if tree is not None:
                mine[index] = tree.token_ids, tree.parents
        tokens, parents = self.ranks.gather(mine)[0].transpose(1, 0, 2).astype(np.int32)
        scores = np.zeros(NODES, np.float32)
        return [TokenTree(token_ids=t, parents=p, log_probs=scores) for t, p in zip(tokens, parents, strict=True)]


def drawing(
    group: Group | None = None, seed: int = 0, sampling: SamplingParams = SAMPLING, wish: TreeWish = WISH
) -> Drawing:
    vocabulary = Share(group).vocabulary(VOCAB)
    random = np.random.default_rng([seed, group.rank if group else 0])
    ranks = group or Alone()
    return Drawing(
        ranks=ranks,
        vocabulary=vocabulary,
        builder=DraftTreeBuilder(vocabulary, VOCAB, group, random),
        sampler=RejectionSampler(ranks, vocabulary, random),
        wish=wish,
        sampling=sampling,
    )


def chance(paths: list[Path], sampling: SamplingParams) -> float:
    """p of a chi-square test of the first tokens, and of the second ones after each first one, all together."""
    statistic, freedom = 0.0, 0
    for row, seen in _observed(paths):
        expected = law(row, sampling) * seen.sum()
        assert not seen[expected == 0].any(), "a token that sampling excludes"
        likely = expected > 5
        statistic += float(((seen - expected)[likely] ** 2 / expected[likely]).sum())
        freedom += int(likely.sum()) - 1
    return float(chi2.sf(statistic, freedom)) if freedom else 1.0


def _observed(paths: list[Path]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    counts = Counter(path[:2] for path in paths)
    firsts, seconds = np.zeros(VOCAB), np.zeros((VOCAB, VOCAB))
    for path, count in counts.items():
        firsts[path[0]] += count
        if len(path) > 1:
            seconds[path] += count
    yield 0, firsts
    for token in np.flatnonzero(seconds.sum(axis=1) > 100).tolist():
        yield 1 + token, seconds[token]


def test_200_000_draws_have_the_targets_law_and_an_altered_draft_is_found_out() -> None:
    fair, unfair = drawing(), drawing()
    paths = [path for _ in range(100) for path in fair.walk_trees(TREES)]
    assert len(paths) == 200_000
    assert sum(len(path) - 1 for path in paths) > 200_000  # of two at most
    assert chance(paths, SAMPLING) > 0.001
    # A quarter of the draws, and a draft that is taken to be a fifth surer than it was.
    assert chance([path for _ in range(25) for path in unfair.walk_trees(TREES, altered=1.2)], SAMPLING) < 1e-6


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.7, top_k=3),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=0.9, top_k=6, top_p=0.9, min_p=0.02),
    ],
)
def test_truncated_laws(sampling: SamplingParams) -> None:
    assert chance(drawing(sampling=sampling).walk_trees(2 * TREES), sampling) > 0.001


@pytest.mark.parametrize("ranks", [2])
@pytest.mark.parametrize("sampling", [SAMPLING, SamplingParams(temperature=0.7, top_k=5, top_p=0.95)])
def test_laws_of_rows_that_are_spread_over_ranks(ranks: int, sampling: SamplingParams) -> None:
    def act(group: Group) -> list[Path]:
        return drawing(group, sampling=sampling).walk_trees(2 * TREES)

    first, *others = on_ranks(ranks, act)
    assert all(path == () for paths in others for path in paths)
    assert sum(len(path) - 1 for path in first) > 2 * TREES
    assert chance(first, sampling) > 0.001


def test_what_is_drafted_from_the_targets_own_law_is_accepted() -> None:
    sampler = RejectionSampler(Alone(), slice(0, VOCAB), np.random.default_rng(0))
    rows = torch.from_numpy(TARGET[:1]) / SAMPLING.temperature
    tree = TreeWalk(
        first_row=0,
        token_ids=np.array([int(TARGET[0].argmin())], np.int32),
        parents=np.zeros(1, np.int32),
        position=9,
        sampling=SAMPLING,
    )
    logits = torch.from_numpy(TARGET[:2])
    for _ in range(200):
        assert sampler.walk(logits, rows, [DrawnWalk(tree=tree, draft_row=0)])[0][1] == [0, 1]


def test_shapes_tell_nothing_of_the_tokens() -> None:
    one, other = (drawing(seed=seed).builder.build(torch.from_numpy(DRAFT.copy()), [WISH])[0] for seed in (1, 2))
    assert one is not None
    assert other is not None
    assert one.token_ids.tolist() != other.token_ids.tolist()
    assert one.parents.tolist() == other.parents.tolist()
    assert one.log_probs.tolist() == other.log_probs.tolist()
    greedy = TreeWish(depths=DEPTHS, position=9, is_chain=False, node_limit=NODES)
    by_rank = DraftTreeBuilder(slice(0, VOCAB), VOCAB, None).build(torch.from_numpy(DRAFT / 0.7), [greedy])[0]
    assert by_rank is not None
    assert one.parents.tolist() == by_rank.parents.tolist()
    np.testing.assert_allclose(one.log_probs, by_rank.log_probs, atol=1e-6)


@pytest.mark.parametrize("broken", [np.nan, -np.inf, np.inf])
def test_a_broken_row_of_the_target_breaks_nobody(broken: float) -> None:
    sampler = RejectionSampler(Alone(), slice(0, VOCAB), np.random.default_rng(0))
    logits = np.concatenate([TARGET[:3], TARGET[:3]])
    logits[:3] = broken
    trees = [
        TreeWalk(
            first_row=first,
            token_ids=np.array([1, 2], np.int32),
            parents=np.array([0, 1], np.int32),
            position=9,
            sampling=SAMPLING,
        )
        for first in (0, 3)
    ]
    drafts = torch.from_numpy(np.concatenate([DRAFT, DRAFT]))
    walks = [DrawnWalk(tree=tree, draft_row=row) for tree, row in zip(trees, (0, 2), strict=True)]
    for _ in range(20):
        for tokens, nodes in sampler.walk(torch.from_numpy(logits), drafts, walks):
            assert len(tokens) == len(nodes)
            assert all(0 <= token < VOCAB for token in tokens)


def test_what_is_not_a_number_is_never_drawn() -> None:
    sampler = RejectionSampler(Alone(), slice(0, VOCAB), np.random.default_rng(0))
    logits = TARGET[:2].copy()
    logits[:, 3] = np.nan
    tree = TreeWalk(
        first_row=0,
        token_ids=np.array([1], np.int32),
        parents=np.array([0], np.int32),
        position=9,
        sampling=SAMPLING,
    )
    walks = [DrawnWalk(tree=tree, draft_row=0)] * 300
    paths = sampler.walk(torch.from_numpy(logits), torch.from_numpy(DRAFT), walks)
    assert 3 not in {token for tokens, _ in paths for token in tokens}


def test_no_rank_sees_a_whole_row() -> None:
    CountingGroup.largest = 0
    vocab = 20_000
    row = np.random.default_rng(4).standard_normal((1, vocab)).astype(np.float32)
    nobody = np.zeros(1, np.int32)
    tree = TreeWalk(first_row=0, token_ids=nobody, parents=nobody, position=9, sampling=SAMPLING)

    def act(group: Group) -> None:
        held = Share(group).vocabulary(vocab)
        sampler = RejectionSampler(group, held, np.random.default_rng(group.rank))
        own = torch.from_numpy(np.concatenate([row, row])[:, held].copy())
        sampler.walk(own, own[:1], [DrawnWalk(tree=tree, draft_row=0)])

    on_ranks(2, act, group_type=CountingGroup)
    assert CountingGroup.largest <= 8
