"""A token tree as two processes exchange it: flat parallel arrays in best-first order.

Index 0 is the root (the last committed token) and is not stored; entry i is node i + 1. A parent comes before its
children and path probabilities never increase, so every prefix of the arrays is a tree too (DDTree, Proposition 2).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from draftwood_wire.errors import MalformedTree
from draftwood_wire.v1 import tree_pb2

MAX_NODES = 256
# Path probabilities are compared after a trip through float32, whose rounding may swap the last bit.
LOG_PROB_SLACK = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    depths: NDArray[np.int32]
    ranks: NDArray[np.int32]
    spine: NDArray[np.bool_]
    children: list[list[int]]  # by node, the root first


@dataclass(frozen=True, kw_only=True)
class TokenTree:
    """token_ids int32 [nodes], parents int32 [nodes] (0 is the root), log_probs float32 [nodes] of whole paths."""

    token_ids: NDArray[np.int32]
    parents: NDArray[np.int32]
    log_probs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.token_ids)

    def cut(self, nodes: int) -> "TokenTree":
        """The first `nodes` nodes, which are the most probable ones."""
        if nodes >= len(self):
            return self
        return TokenTree(
            token_ids=self.token_ids[:nodes], parents=self.parents[:nodes], log_probs=self.log_probs[:nodes]
        )

    def depths(self) -> NDArray[np.int32]:
        """Depth of each node, int32 [nodes]; a child of the root has depth 1."""
        return self._shape.depths

    def ranks(self) -> NDArray[np.int32]:
        """Place of each node among its siblings, the best one 0: int32 [nodes]."""
        return self._shape.ranks

    def spine(self) -> NDArray[np.bool_]:
        """Whether a node lies on the path of best children from the root: bool [nodes]."""
        return self._shape.spine

    def confidence(self) -> NDArray[np.float64]:
        """Probability of each node given its parent, as the draft sees it: float64 [nodes]."""
        whole = np.concatenate([[0.0], self.log_probs.astype(np.float64)])
        confidence: NDArray[np.float64] = np.exp(np.minimum(whole[1:] - whole[self.parents], 0.0))
        return confidence

    def children(self, node: int) -> list[int]:
        """Nodes whose parent is `node`, best first."""
        return self._shape.children[node]

    def select(self, entries: NDArray[np.integer]) -> "TokenTree":
        """The tree of these entries (ascending), which must hold the parents of all of them."""
        new_index = np.zeros(len(self) + 1, np.int32)
        new_index[entries + 1] = np.arange(1, len(entries) + 1)
        return TokenTree(
            token_ids=self.token_ids[entries],
            parents=new_index[self.parents[entries]],
            log_probs=self.log_probs[entries],
        )

    @cached_property
    def _shape(self) -> "_Shape":
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        depths, spine, ranks = [0], [True], []
        for node, parent in enumerate(self.parents.tolist(), start=1):
            siblings = children[parent]
            depths.append(depths[parent] + 1)
            spine.append(spine[parent] and not siblings)
            ranks.append(len(siblings))
            siblings.append(node)
        return _Shape(
            depths=np.array(depths[1:], np.int32),
            ranks=np.array(ranks, np.int32),
            spine=np.array(spine[1:], np.bool_),
            children=children,
        )

    def descend(self, tokens: list[int]) -> "TokenTree | None":
        """The tree below the node that spells `tokens` from the root, re-rooted there; None when no path does."""
        node = 0
        children = {(int(p), int(t)): i + 1 for i, (p, t) in enumerate(zip(self.parents, self.token_ids, strict=True))}
        for token in tokens:
            found = children.get((node, token))
            if found is None:
                return None
            node = found
        return self._below(node)

    def _below(self, root: int) -> "TokenTree":
        new_index = {root: 0}
        kept: list[int] = []
        for entry, parent in enumerate(self.parents.tolist()):
            if parent in new_index and entry + 1 != root:
                kept.append(entry)
                new_index[entry + 1] = len(kept)
        parents = [new_index[int(self.parents[entry])] for entry in kept]
        base = float(self.log_probs[root - 1]) if root else 0.0
        return TokenTree(
            token_ids=self.token_ids[kept],
            parents=np.array(parents, dtype=np.int32),
            log_probs=np.asarray(self.log_probs[kept] - base, dtype=np.float32),
        )


EMPTY_TREE = TokenTree(
    token_ids=np.zeros(0, np.int32), parents=np.zeros(0, np.int32), log_probs=np.zeros(0, np.float32)
)


def check_tree(tree: TokenTree, *, vocab_size: int, node_limit: int, max_depth: int) -> None:
    """Raise MalformedTree when a tree from an untrusted peer breaks any rule of the format."""
    nodes = len(tree)
    if not (len(tree.parents) == len(tree.log_probs) == nodes):
        raise MalformedTree(
            f"token_ids, parents and log_probs differ in length: {nodes}, {len(tree.parents)}, {len(tree.log_probs)}"
        )
    if nodes > node_limit:
        raise MalformedTree(f"token_ids: {nodes} nodes, the limit is {node_limit}")
    if nodes == 0:
        return
    if tree.token_ids.min() < 0 or tree.token_ids.max() >= vocab_size:
        raise MalformedTree(f"token_ids: an id outside 0..{vocab_size - 1}")
    if tree.parents.min() < 0 or (tree.parents > np.arange(nodes)).any():
        raise MalformedTree("parents: a parent must come before its children")
    if not np.isfinite(tree.log_probs).all() or tree.log_probs.max() > LOG_PROB_SLACK:
        raise MalformedTree("log_probs: must be finite and at most 0")
    if (np.diff(tree.log_probs) > LOG_PROB_SLACK).any():
        raise MalformedTree("log_probs: must never increase")
    if tree.depths().max() > max_depth:
        raise MalformedTree(f"parents: a path is longer than {max_depth}")
    if len(set(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True))) != nodes:
        raise MalformedTree("token_ids: two children of one node carry the same token")


def tree_to_proto(tree: TokenTree) -> tree_pb2.TokenTree:
    return tree_pb2.TokenTree(
        token_ids=tree.token_ids.tolist(), parents=tree.parents.tolist(), log_probs=tree.log_probs.tolist()
    )


def tree_from_proto(message: tree_pb2.TokenTree) -> TokenTree:
    """The arrays as they came; `check_tree` says whether they are a tree. Ids beyond int32 become -1."""

    def ids(values: list[int]) -> NDArray[np.int32]:
        wide = np.array(values, dtype=np.int64)
        return np.where(wide > np.iinfo(np.int32).max, -1, wide).astype(np.int32)

    return TokenTree(
        token_ids=ids(list(message.token_ids)),
        parents=ids(list(message.parents)),
        log_probs=np.array(message.log_probs, dtype=np.float32),
    )
