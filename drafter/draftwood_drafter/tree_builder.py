"""From the draft head's logits to token trees, for a batch of sessions.

Shapes: S sessions, T depths (block size - 1), V vocabulary.
"""

import torch

from draftwood_drafter.session import Session, Shape
from draftwood_kernels.build_tree import TreeWish, candidates_needed, grow_trees, perturb, top_candidates
from draftwood_wire.tree import TokenTree


def build_trees(logits: torch.Tensor, sessions: list[Session]) -> list[TokenTree | None]:
    """The next tree of each session from logits [S * T, V], which are scribbled on.

    None for a session with a row that is not finite.
    """
    depths, vocab_size = len(logits) // len(sessions), logits.shape[1]
    wishes = [_wish(session, depths) for session in sessions]
    perturb(logits, wishes, lambda index, position: sessions[index].noise_row(position, vocab_size))
    trees = grow_trees(top_candidates(logits, candidates_needed(wishes, vocab_size)), wishes)
    return [
        None if arrays is None else TokenTree(token_ids=arrays[0], parents=arrays[1], log_probs=arrays[2])
        for arrays in trees
    ]


def _wish(session: Session, depths: int) -> TreeWish:
    return TreeWish(
        depths=depths,
        position=len(session.tokens),
        is_chain=session.params.shape is Shape.CHAIN,
        node_limit=session.nodes_wanted,
        temperature=session.params.temperature,
        seed=session.params.seed,
    )
