"""Draft marginals to a token tree: the node_limit most probable prefixes, best first.

Shapes: D depths, K candidates a depth, N nodes. One dispatch point; a Triton kernel joins here later.
"""

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.build_tree import reference

TreeArrays = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]


def best_first(log_probs: list[list[float]], token_ids: list[list[int]], node_limit: int) -> TreeArrays:
    """The node_limit best prefixes of D independent marginals, in falling order of path probability.

    log_probs [D][K]: natural logarithms, at most 0, falling along K. token_ids [D][K]: their tokens, distinct within
    a row. Both are lists, because one host transfer and Python floats beat indexing arrays at these sizes.
    Returns token_ids int32 [N], parents int32 [N] (0 is the root, node i is entry i - 1), log_probs float32 [N].
    N < node_limit only when fewer prefixes have a probability above 0. K >= node_limit makes the result exact: a
    prefix whose last token has rank r has r better siblings, so ranks beyond node_limit - 1 never enter.
    """
    return reference.best_first(log_probs, token_ids, node_limit)


def chain(log_probs: list[float], token_ids: list[int], node_limit: int) -> TreeArrays:
    """The path through each depth's best token; log_probs [D], token_ids [D]; at most node_limit nodes."""
    return reference.chain(log_probs, token_ids, node_limit)
