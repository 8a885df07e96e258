"""Trees from hidden states on several ranks are those from whole rows, and no rank gathers a row."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftwood_kernels.build_tree import TreeWish
from draftwood_verifier.parallel.draft_trees import DraftTreeBuilder, _merged, _offers
from draftwood_verifier.parallel.groups import Group
from draftwood_verifier.parallel.linear import Share
from draftwood_wire.tree import TokenTree, check_tree
from tests.unit.parallel.ranks import CountingGroup, on_ranks

DEPTHS = 6
TREE = TreeWish(depths=DEPTHS, position=40, is_chain=False, node_limit=24)
KEYED = TreeWish(depths=DEPTHS, position=41, is_chain=False, node_limit=9, temperature=0.8, seed=2**64 - 1)
CHAIN = TreeWish(depths=DEPTHS, position=42, is_chain=True, node_limit=4, temperature=0.8, seed=3)
UNKEYED = TreeWish(depths=2, position=3, is_chain=False, node_limit=8, temperature=0.5)
WISHES = [TREE, KEYED, CHAIN, UNKEYED]
ROWS = sum(wish.depths for wish in WISHES)
Trees = list[TokenTree | None]


def rows(vocab: int, seed: int = 0) -> NDArray[np.float32]:
    return 3 * np.random.default_rng([vocab, seed]).standard_normal((ROWS, vocab), np.float32)


def whole(logits: NDArray[np.float32], wishes: list[TreeWish]) -> Trees:
    vocab = logits.shape[1]
    return DraftTreeBuilder(slice(0, vocab), vocab, None).build(torch.from_numpy(logits.copy()), wishes)


def together(logits: NDArray[np.float32], wishes: list[TreeWish], ranks: int, group_type: type[Group] = Group) -> Trees:
    vocab = logits.shape[1]

    def act(group: Group) -> Trees:
        held = Share(group).vocabulary(vocab)
        builder = DraftTreeBuilder(held, vocab, group)
        return builder.build(torch.from_numpy(logits[:, held].copy()), wishes)

    first, *others = on_ranks(ranks, act, group_type=group_type)
    assert others == [[None] * len(wishes)] * (ranks - 1)
    return first


def check_same(one: Trees, other: Trees) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine is not None
        assert theirs is not None
        np.testing.assert_array_equal(mine.token_ids, theirs.token_ids)
        np.testing.assert_array_equal(mine.parents, theirs.parents)
        np.testing.assert_allclose(mine.log_probs, theirs.log_probs, atol=1e-5)


@pytest.mark.parametrize(("vocab", "ranks"), [(13, 3), (64, 4), (4099, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_trees_as_from_whole_rows(vocab: int, ranks: int, seed: int) -> None:
    logits = rows(vocab, seed)
    trees = together(logits, WISHES, ranks)
    check_same(trees, whole(logits, WISHES))
    for tree, wish in zip(trees, WISHES, strict=True):
        assert tree is not None
        check_tree(tree, vocab_size=vocab, node_limit=wish.node_limit, max_depth=wish.depths)
        assert len(tree) == wish.node_limit


@pytest.mark.parametrize("count", [1, 5, 40])
def test_ties_between_ranks_go_to_the_lower_id(count: int) -> None:
    logits = torch.from_numpy(np.round(rows(64) / 3))
    parts = [logits[:, start : start + 16] for start in range(0, 64, 16)]
    offered = np.stack([_offers(part, count, 16 * rank) for rank, part in enumerate(parts)])
    order = torch.argsort(logits, dim=1, descending=True, stable=True)[:, :count]
    candidates = _merged(offered, count)
    np.testing.assert_array_equal(candidates.token_ids, order)
    np.testing.assert_allclose(candidates.log_probs, logits.log_softmax(dim=1).gather(1, order), atol=1e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("ranks", [1, 2])
def test_one_wish_without_numbers_harms_no_other(broken: float, ranks: int) -> None:
    logits = rows(64)
    expected = whole(logits, WISHES)
    logits[DEPTHS + 2, 5 if broken > 0 or np.isnan(broken) else slice(None)] = broken
    trees = whole(logits, WISHES) if ranks == 1 else together(logits, WISHES, ranks)
    assert trees[1] is None
    check_same([trees[0], *trees[2:]], [expected[0], *expected[2:]])


def test_noise_is_drawn_once_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when two groups take turns."""
    drawn: list[int] = []
    monkeypatch.setattr(
        "draftwood_verifier.parallel.draft_trees.gumbel",
        lambda seed, position, count, first: drawn.append(position) or np.full(count, seed + first, np.float32),
    )
    builder = DraftTreeBuilder(slice(8, 16), 16, None)

    def build(position: int, seed: int) -> None:
        wish = TreeWish(depths=3, position=position, is_chain=True, node_limit=3, temperature=1.0, seed=seed)
        builder.build(torch.zeros(3, 8), [wish])

    for position, seed in ((4, 1), (20, 2), (5, 1), (22, 2), (5, 1)):
        build(position, seed)
    assert sorted(drawn) == [4, 5, 6, 7, 20, 21, 22, 23, 24]


def test_no_rank_sees_a_whole_row() -> None:
    CountingGroup.largest = 0
    together(rows(20_000), WISHES, 2, CountingGroup)
    assert CountingGroup.largest == ROWS * (1 + 2 * TREE.node_limit)
