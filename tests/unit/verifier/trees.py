"""Random draft trees for the budget's tests."""

import numpy as np

from draftwood_wire.tree import TokenTree


def random_tree(random: np.random.Generator, nodes: int, *, depth: int = 7, vocab_size: int = 1000) -> TokenTree:
    """Distinct siblings, parents first, falling path probabilities."""
    parents, depths, scores, tokens = [], [0], [0.0], []
    for node in range(nodes):
        parent = int(random.choice([p for p in range(node + 1) if depths[p] < depth]))
        parents.append(parent)
        depths.append(depths[parent] + 1)
        scores.append(min(scores[-1], scores[parent]) - float(random.exponential(0.2)))
        tokens.append(int(random.integers(vocab_size - nodes)) + node)
    return TokenTree(
        token_ids=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        log_probs=np.array(scores[1:], np.float32),
    )
