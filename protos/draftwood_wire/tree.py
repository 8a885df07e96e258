"""A token tree as two processes exchange it: flat parallel arrays in best-first order.

Index 0 is the root (the last committed token) and is not stored; entry i is node i + 1. A parent comes before its
children and path probabilities never increase, so every prefix of the arrays is a tree too (DDTree, Proposition 2).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from draftwood_wire.errors import MalformedTree
from draftwood_wire.v1 import tree_pb2

MAX_NODES = 256
# Path probabilities are compared after a trip through float32, whose rounding may swap the last bit.
LOG_PROB_SLACK = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeShape:
    """What follows from a tree's arrays; plain lists, which are quicker than arrays for a handful of nodes."""

    parents: list[int]  # by entry: the parent's node
    # By entry: whether the parent is on the path of best children, where the root is; depth, from 1; rank among its
    # siblings, the best one 0.
    places: list[tuple[bool, int, int]]
    confidence: list[float]  # by entry: probability given its parent, as the draft sees it


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

    def select(self, entries: list[int]) -> "TokenTree":
        """The tree of these entries (ascending), which must hold the parents of all of them."""
        nodes = len(entries)
        if not nodes or entries[-1] < nodes:
            return self.cut(nodes)
        new_index, parents, places = {0: 0}, self.parents.tolist(), np.array(entries, np.intp)
        for node, entry in enumerate(entries, start=1):
            new_index[entry + 1] = node
        return TokenTree(
            token_ids=self.token_ids[places],
            parents=np.array([new_index[parents[entry]] for entry in entries], np.int32),
            log_probs=self.log_probs[places],
        )

    @cached_property
    def depths(self) -> list[int]:
        """By node, the root first: depths[0] is 0. Worked out on first use, like `shape`."""
        depths = [0]
        for parent in self.parents.tolist():
            depths.append(depths[parent] + 1)
        return depths

    @cached_property
    def shape(self) -> "TreeShape":
        parents, depths = self.parents.tolist(), self.depths
        whole = [0.0, *self.log_probs.tolist()]
        siblings, spine = [0] * (1 + len(parents)), [True]  # by node: children so far; on the path of best children
        places: list[tuple[bool, int, int]] = []
        confidence: list[float] = []
        for node, parent in enumerate(parents, start=1):
            rank, on_spine, rise = siblings[parent], spine[parent], whole[node] - whole[parent]
            siblings[parent] = rank + 1
            spine.append(on_spine and not rank)
            places.append((on_spine, depths[node], rank))
            confidence.append(math.exp(rise) if rise < 0.0 else 1.0)
        return TreeShape(parents=parents, places=places, confidence=confidence)

    @cached_property
    def children(self) -> list[list[int]]:
        """Nodes by parent node, best first; the root's children are children[0]."""
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents.tolist(), start=1):
            children[parent].append(node)
        return children

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
    token_ids, parents, log_probs = tree.token_ids.tolist(), tree.parents.tolist(), tree.log_probs.tolist()
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        raise MalformedTree(f"token_ids: an id outside 0..{vocab_size - 1}")
    if min(parents) < 0 or any(parent > entry for entry, parent in enumerate(parents)):
        raise MalformedTree("parents: a parent must come before its children")
    if not all(map(math.isfinite, log_probs)) or max(log_probs) > LOG_PROB_SLACK:
        raise MalformedTree("log_probs: must be finite and at most 0")
    if any(after - before > LOG_PROB_SLACK for before, after in pairwise(log_probs)):
        raise MalformedTree("log_probs: must never increase")
    if max(tree.depths) > max_depth:
        raise MalformedTree(f"parents: a path is longer than {max_depth}")
    if len(set(zip(parents, token_ids, strict=True))) != nodes:
        raise MalformedTree("token_ids: two children of one node carry the same token")


def tree_to_proto(tree: TokenTree) -> tree_pb2.TokenTree:
    return tree_pb2.TokenTree(
        token_ids=tree.token_ids.tolist(), parents=tree.parents.tolist(), log_probs=tree.log_probs.tolist()
    )


def tree_from_proto(message: tree_pb2.TokenTree) -> TokenTree:
    """The arrays as they came; `check_tree` says whether they are a tree. Ids beyond int32 become negative.

    By way of lists, which takes a third of the time.
    """
    return TokenTree(
        token_ids=np.array(message.token_ids[:], np.uint32).view(np.int32),
        parents=np.array(message.parents[:], np.uint32).view(np.int32),
        log_probs=np.array(message.log_probs[:], np.float32),
    )
