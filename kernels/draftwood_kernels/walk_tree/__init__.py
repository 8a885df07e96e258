"""Which path of a token tree the target takes: sample at the root, descend while a child carries the token.

Shapes: R logit rows, V vocabulary, N nodes. One dispatch point; on a GPU one launch walks all trees.
"""

from draftwood_kernels.walk_tree.reference import TreeWalk, follow, walk_trees

__all__ = ["TreeWalk", "follow", "walk_trees"]
