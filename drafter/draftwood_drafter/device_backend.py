"""Drafts on a GPU: steps of a few sizes, each captured once as a graph over buffers of its own.

Context goes in by steps of its own, as soon as it comes: a draft's size then does not depend on how many rows were
committed, a session's pages hold nothing that is still to be written when they change hands, and both are in one
stream, so that neither waits for the other on the host. What a draft waits for is its trees, once.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from draftwood_drafter.backend import ContextPiece, Draft
from draftwood_drafter.context_cache import ContextCache
from draftwood_drafter.context_step import ContextSize, ContextStep
from draftwood_drafter.draft_step import DraftSize, DraftStep, most_nodes
from draftwood_drafter.model import DraftModel
from draftwood_drafter.session import Session
from draftwood_kernels.block_attention import check_heads
from draftwood_kernels.build_tree import MOST_DEPTHS
from draftwood_kernels.device_timer import DeviceTimer
from draftwood_kernels.step_graphs import StepGraphs
from draftwood_wire.errors import Incompatible
from draftwood_wire.tree import TokenTree

# Rows and pieces of a context step: prompts go in by turns. Its buffers hold a copy of the features.
MOST_ROWS, MOST_PIECES = 512, 64
# Sessions of a draft step: bounds the logits, of which a large vocabulary has most of a step's memory.
MOST_SESSIONS = 32
# Sizes below these cost no less.
_LEAST_ROWS, _LEAST_PAGES, _LEAST_NODES = 8, 64, 8


class DeviceBackend:
    """A DraftBackend. On a CPU the same steps run one operation after the other."""

    def __init__(self, model: DraftModel, cache: ContextCache) -> None:
        """Raises Incompatible for a model that no step can be made of."""
        check_supported(model)
        self._model = model
        self._cache = cache
        self._graphs = StepGraphs(model.placement.device)
        self._timer = DeviceTimer(model.placement.device)
        self.device_s = 0.0
        self._context_steps: dict[ContextSize, ContextStep] = {}
        self._draft_steps: dict[DraftSize, DraftStep] = {}

    def write(self, pieces: list[ContextPiece]) -> None:
        for turn in turns(pieces, MOST_ROWS, MOST_PIECES):
            size = ContextSize(
                rows=_bucket(sum(len(piece.features) for piece in turn), _LEAST_ROWS),
                pieces=_bucket(len(turn)),
                pages=self._page_bucket(max(piece.start + len(piece.features) for piece in turn)),
            )
            if size not in self._context_steps:
                self._context_steps[size] = ContextStep(self._model, self._cache, size)
            step = self._context_steps[size]
            step.fill(turn)
            step.inputs.upload()
            self._graphs.run(size, step)

    def groups(self, sessions: list[Session]) -> list[list[Session]]:
        """Sessions of similar length together: the longest one's pages size a step."""
        ordered = sorted(sessions, key=lambda s: len(s.tokens))
        return [ordered[first : first + MOST_SESSIONS] for first in range(0, len(ordered), MOST_SESSIONS)]

    def draft(self, group: list[Session]) -> list[Draft | None]:
        size = self._draft_size(group)
        if size not in self._draft_steps:
            self._draft_steps[size] = DraftStep(self._model, self._cache, size)
        step = self._draft_steps[size]
        step.fill(group)
        self._timer.start()
        step.inputs.upload()
        self._graphs.run(size, step)
        # Before the copy, whose end is all that `settle` waits for.
        self._timer.stop()
        step.outputs.download()
        step.outputs.settle()
        self.device_s += self._timer.seconds
        read = _tree if self._model.has_head else _hidden_states
        return [read(step.outputs.host, index, session) for index, session in enumerate(group)]

    def _draft_size(self, group: list[Session]) -> DraftSize:
        depths, has_head = self._model.config.block_size - 1, self._model.has_head
        return DraftSize(
            sessions=_bucket(len(group)),
            pages=self._page_bucket(max(len(session.tokens) - 1 for session in group)),
            nodes=_bucket(max(most_nodes(session, depths) for session in group), _LEAST_NODES) if has_head else 0,
            is_sampled=has_head and any(session.params.temperature > 0 for session in group),
        )

    def _page_bucket(self, positions: int) -> int:
        return _bucket(-(-positions // self._cache.page_size), _LEAST_PAGES)


def turns(pieces: list[ContextPiece], most_rows: int, most_pieces: int) -> Iterator[list[ContextPiece]]:
    """The same rows in the same order, in turns within both bounds; a long piece is cut."""
    turn: list[ContextPiece] = []
    room = most_rows
    for piece in pieces:
        rest = piece
        while len(rest.features):
            if not room or len(turn) == most_pieces:
                yield turn
                turn, room = [], most_rows
            taken = replace(rest, features=rest.features[:room])
            turn.append(taken)
            room -= len(taken.features)
            rest = replace(rest, start=rest.start + len(taken.features), features=rest.features[len(taken.features) :])
    if turn:
        yield turn


def check_supported(model: DraftModel) -> None:
    """Raises Incompatible for a model that no step can be made of."""
    c = model.config
    try:
        check_heads(c.num_attention_heads, c.num_key_value_heads, c.head_dim)
    except ValueError as error:
        raise Incompatible(f"draft: {error}; start the drafter with --device cpu") from error
    # Padding is drafted for too, at position 0.
    most = min(MOST_DEPTHS + 1, c.max_position_embeddings)
    if c.block_size > most:
        raise Incompatible(
            f"draft: block_size {c.block_size}, a GPU drafts up to {most} rows; start the drafter with --device cpu"
        )


def _bucket(count: int, least: int = 1) -> int:
    """The least power of two that holds `count`, not below `least`."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def _tree(outputs: dict[str, torch.Tensor], index: int, session: Session) -> Draft | None:
    nodes = int(outputs["counts"][index])
    # Copies, for the next step of this size overwrites the outputs.
    token_ids, parents, log_probs = (
        outputs[name][index, :nodes].numpy().copy() for name in ("token_ids", "parents", "log_probs")
    )
    tree = TokenTree(token_ids=token_ids, parents=parents, log_probs=log_probs)
    return Draft(session_id=session.session_id, base_len=len(session.tokens), tree=tree) if nodes else None


def _hidden_states(outputs: dict[str, torch.Tensor], index: int, session: Session) -> Draft | None:
    # A tree of N nodes has no node deeper than N.
    rows = outputs["hidden_states"][index, : session.nodes_wanted].to(torch.float32, copy=True)
    if not rows.isfinite().all():
        return None
    return Draft(session_id=session.session_id, base_len=len(session.tokens), hidden_states=rows.numpy())
