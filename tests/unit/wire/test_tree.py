"""Trees: every prefix is a tree, descending re-roots, every broken rule is refused by name."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood_wire.errors import MalformedTree
from draftwood_wire.tree import EMPTY_TREE, TokenTree, check_tree, tree_from_proto, tree_to_proto
from draftwood_wire.v1 import tree_pb2

VOCAB = 50


def tree_of(*nodes: tuple[int, int, float]) -> TokenTree:
    """Nodes as (token, parent, log-probability of the path)."""
    return TokenTree(
        token_ids=np.array([n[0] for n in nodes], np.int32),
        parents=np.array([n[1] for n in nodes], np.int32),
        log_probs=np.array([n[2] for n in nodes], np.float32),
    )


#      root -> 0 (p .5) -> 7 -> 9
#           -> 5        -> 7
SAMPLE = tree_of((0, 0, -0.5), (7, 1, -0.75), (5, 0, -1.0), (9, 2, -1.25), (7, 3, -2.0))


def check(tree: TokenTree, node_limit: int = 16, max_depth: int = 7) -> None:
    check_tree(tree, vocab_size=VOCAB, node_limit=node_limit, max_depth=max_depth)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Valid trees of up to 40 nodes."""
    size = draw(st.integers(0, 40))
    nodes: list[tuple[int, int, float]] = []
    used: set[tuple[int, int]] = set()
    log_prob = 0.0
    for index in range(size):
        parent = draw(st.integers(0, index))
        token = draw(st.sampled_from([t for t in range(VOCAB) if (parent, t) not in used]))
        used.add((parent, token))
        log_prob -= draw(st.floats(0.0, 2.0, width=32))
        nodes.append((token, parent, log_prob))
    return tree_of(*nodes)


def paths(tree: TokenTree) -> list[list[int]]:
    """Tokens from the root to every node."""
    spelled: list[list[int]] = [[]]
    for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
        spelled.append([*spelled[parent], token])
    return spelled[1:]


@given(trees(), st.integers(0, 41))
def test_every_prefix_is_a_valid_tree(tree: TokenTree, size: int) -> None:
    cut = tree.cut(size)
    assert len(cut) == min(size, len(tree))
    check(cut, node_limit=40, max_depth=40)


@given(trees())
def test_the_wire_keeps_every_array(tree: TokenTree) -> None:
    message = tree_pb2.TokenTree.FromString(tree_to_proto(tree).SerializeToString())
    back = tree_from_proto(message)
    for name in ("token_ids", "parents", "log_probs"):
        np.testing.assert_array_equal(getattr(back, name), getattr(tree, name))


@given(trees(), st.data())
def test_descending_keeps_exactly_the_paths_below(tree: TokenTree, data: st.DataObject) -> None:
    spelled = paths(tree)
    prefix = data.draw(st.sampled_from([[], *spelled]))
    below = tree.descend(prefix)
    assert below is not None
    check(below, node_limit=40, max_depth=40)
    expected = [path[len(prefix) :] for path in spelled if path[: len(prefix)] == prefix and len(path) > len(prefix)]
    assert paths(below) == expected


def test_descending_off_the_tree_finds_nothing() -> None:
    assert SAMPLE.descend([0, 9]) is None
    assert EMPTY_TREE.descend([0]) is None


def test_token_zero_is_a_token() -> None:
    below = SAMPLE.descend([0])
    assert below is not None
    assert paths(below) == [[7], [7, 9]]
    np.testing.assert_allclose(below.log_probs, [-0.25, -0.75])


def test_depths_count_from_the_root() -> None:
    assert SAMPLE.depths == [0, 1, 2, 1, 3, 2]


def test_an_empty_tree_is_plain_decoding() -> None:
    check(EMPTY_TREE)


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        pytest.param(replace(SAMPLE, parents=SAMPLE.parents[:-1]), "parents", id="lengths differ"),
        pytest.param(tree_of((VOCAB, 0, -1.0)), "token_ids", id="token beyond the vocabulary"),
        pytest.param(tree_of((-1, 0, -1.0)), "token_ids", id="negative token"),
        pytest.param(tree_of((1, 1, -1.0)), "parents", id="its own parent"),
        pytest.param(tree_of((1, 2, -1.0), (2, 0, -2.0)), "parents", id="parent after child"),
        pytest.param(tree_of((1, -1, -1.0)), "parents", id="negative parent"),
        pytest.param(tree_of((1, 0, float("nan"))), "log_probs", id="nan"),
        pytest.param(tree_of((1, 0, float("-inf"))), "log_probs", id="minus infinity"),
        pytest.param(tree_of((1, 0, 0.5)), "log_probs", id="probability above one"),
        pytest.param(tree_of((1, 0, -2.0), (2, 0, -1.0)), "log_probs", id="probabilities rise"),
        pytest.param(tree_of((1, 0, -1.0), (1, 0, -2.0)), "token_ids", id="twin children"),
    ],
)
def test_a_broken_rule_is_refused_by_name(tree: TokenTree, field: str) -> None:
    with pytest.raises(MalformedTree, match=field):
        check(tree)


def test_limits_of_nodes_and_depth() -> None:
    with pytest.raises(MalformedTree, match="the limit is 4"):
        check(SAMPLE, node_limit=4)
    with pytest.raises(MalformedTree, match="longer than 2"):
        check(SAMPLE, max_depth=2)


def test_ids_beyond_int32_are_refused_not_wrapped() -> None:
    message = tree_pb2.TokenTree(token_ids=[2**32 - 1], parents=[0], log_probs=[-1.0])
    with pytest.raises(MalformedTree, match="token_ids"):
        check(tree_from_proto(message))
    message = tree_pb2.TokenTree(token_ids=[1], parents=[2**31], log_probs=[-1.0])
    with pytest.raises(MalformedTree, match="parents"):
        check(tree_from_proto(message))
