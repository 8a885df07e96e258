"""Which path of a token tree the target takes: sample at the root, descend while a child carries the token.

Shapes: R logit rows, V vocabulary, N nodes. One dispatch point; on a GPU one launch walks all trees.
"""

import torch

from draftwood_kernels.walk_tree import reference
from draftwood_kernels.walk_tree.reference import TreeWalk, follow

__all__ = ["TreeWalk", "follow", "walk_trees"]


def walk_trees(logits: torch.Tensor, walks: list[TreeWalk]) -> list[tuple[list[int], list[int]]]:
    """logits [R, V] -> for each walk its m drawn tokens and the m nodes they were drawn at (0 is the root).

    The last token has no child: it is the bonus. On a CPU logits are float32. The answer is on the host, so this waits
    for a GPU; a step that must not wait launches `sample.kernel` and `walk_tree.kernel` itself.
    """
    if logits.is_cuda:
        from draftwood_kernels.walk_tree import on_device  # noqa: PLC0415

        return on_device.walk_trees(logits, walks)
    return reference.walk_trees(logits, walks)
