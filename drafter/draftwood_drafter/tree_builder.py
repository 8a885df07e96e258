"""From the draft head's logits to token trees, for a batch of sessions.

Shapes: S sessions, T depths (block size - 1), V vocabulary, K candidates.
At temperature > 0 the rows are perturbed with the noise that the verifier will add to the target's logits at the same
positions, so that the best children are the tokens it is likely to draw (DESIGN 3).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from draftwood_drafter.session import DraftParams, Session, Shape
from draftwood_kernels.build_tree import best_first, chain
from draftwood_kernels.sample import gumbel
from draftwood_wire.tree import TokenTree


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The best K tokens of every depth: log_probs and token_ids are [S * T][K], log_probs falling along K."""

    log_probs: list[list[float]]
    token_ids: list[list[int]]


def perturb(logits: torch.Tensor, sessions: list[Session]) -> torch.Tensor:
    """logits [S * T, V] -> logits / temperature + noise where a session samples; greedy rows stay as they are."""
    depths = len(logits) // len(sessions)
    for index, session in enumerate(sessions):
        if session.params.temperature > 0:
            rows = logits[index * depths : (index + 1) * depths]
            rows /= session.params.temperature
            if session.params.seed is not None:
                rows += torch.from_numpy(_noise(session, depths, logits.shape[1])).to(logits.device)
    return logits


def _noise(session: Session, depths: int, vocab_size: int) -> np.ndarray:
    """Rows [T, V] of the token positions after the root; depth 1 is the token at position len(tokens)."""
    assert session.params.seed is not None
    first = len(session.tokens)
    # What was drawn for a rejected depth is wanted again next round.
    session.noise = {
        position: session.noise[position] if position in session.noise else _row(session, position, vocab_size)
        for position in range(first, first + depths)
    }
    return np.stack(list(session.noise.values()))


def _row(session: Session, position: int, vocab_size: int) -> np.ndarray:
    assert session.params.seed is not None
    return gumbel(session.params.seed, position, vocab_size)


def find_candidates(logits: torch.Tensor, params: list[DraftParams]) -> Candidates:
    """Top candidates of logits [S * T, V]: one each if all sessions draft chains, else the largest node limit.

    A tree of N nodes never uses rank N or beyond (see build_tree), so the cut loses nothing.
    """
    log_probs = logits.log_softmax(dim=-1)
    if all(p.shape is Shape.CHAIN for p in params):
        values, ids = log_probs.max(dim=-1, keepdim=True)
    else:
        count = max(p.node_limit for p in params if p.shape is Shape.TREE)
        values, ids = log_probs.topk(min(count, logits.shape[1]), dim=-1)
    return Candidates(log_probs=values.tolist(), token_ids=ids.tolist())


def build_tree(candidates: Candidates, rows: range, params: DraftParams) -> TokenTree:
    """The tree of one session, whose depths are `rows` of the candidates. Raises ValueError on NaN or infinite rows."""
    log_probs = [candidates.log_probs[row] for row in rows]
    token_ids = [candidates.token_ids[row] for row in rows]
    if not all(math.isfinite(row[0]) for row in log_probs):
        raise ValueError("the draft's logits are not finite")
    if params.shape is Shape.CHAIN:
        arrays = chain([row[0] for row in log_probs], [row[0] for row in token_ids], params.node_limit)
    else:
        arrays = best_first(log_probs, token_ids, params.node_limit)
    return TokenTree(token_ids=arrays[0], parents=arrays[1], log_probs=arrays[2])
