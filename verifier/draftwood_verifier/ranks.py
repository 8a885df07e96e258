"""One step on all ranks: rank 0 leads, the others follow.

What a step has kept travels with the next one. Scratch lives until then, so it is early enough, it saves a message a
step, and all ranks keep the same rows whatever they have computed: accepted paths are decided by rank 0 alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from draftwood_verifier.parallel.groups import Group, GroupLost
from draftwood_verifier.plan import CommitPlan, DraftPlan, Path, Runner, StepPlan
from draftwood_verifier.plan_message import Ints, decode, decode_drafts, encode, encode_drafts
from draftwood_verifier.step_features import StepFeatures
from draftwood_wire.tree import TokenTree

# A broadcast has one size on all ranks, before they know what is in it. This is room for a plain step of 64 sessions
# with 100 pages each, and costs as much as a quarter of it; what does not fit follows in a second broadcast.
FRAME_BYTES = 64 * 1024
_FRAME_INTS = FRAME_BYTES // 4
_HEADER = 2  # kind, and length of the message
_ROOM = _FRAME_INTS - _HEADER
_NOTHING = CommitPlan(rows=np.zeros(0, np.int32), slots=np.zeros(0, np.int32))


class _Kind(IntEnum):
    STOP = 0
    STEP = 1
    DRAFTS = 2
    FEATURES = 3


class Leader:
    """Rank 0's runner: implements `plan.Runner`, and makes the other ranks do the same.

    Whatever fails while the ranks are at it together raises GroupLost: they are not at the same place any more.
    """

    def __init__(self, runner: Runner, group: Group) -> None:
        """Return when all ranks have loaded."""
        with _together(group):
            group.meet()
        self._runner = runner
        self._group = group
        self._kept = _NOTHING
        self.vocab_size = runner.vocab_size
        self.hidden_size = runner.hidden_size
        self.layers = runner.layers
        self.context_limit = runner.context_limit
        self.eos_token_ids = runner.eos_token_ids

    @property
    def device_s(self) -> float:
        """Of this rank."""
        return self._runner.device_s

    def set_feature_layers(self, layer_ids: tuple[int, ...]) -> None:
        """Drafters are served here alone, but ranks that capture steps have to do so at the same ones: a capture runs
        the step's sums more than once."""
        self._runner.set_feature_layers(layer_ids)
        with _together(self._group):
            _send(self._group, _Kind.FEATURES, np.array(layer_ids, np.int32))

    def execute(self, plan: StepPlan) -> list[Path]:
        message, self._kept = encode(self._kept, plan), _NOTHING
        with _together(self._group):
            _send(self._group, _Kind.STEP, message)
            return self._runner.execute(plan)

    def build_trees(self, plan: DraftPlan) -> list[TokenTree | None]:
        with _together(self._group):
            _send(self._group, _Kind.DRAFTS, encode_drafts(plan))
            return self._runner.build_trees(plan)

    def commit(self, plan: CommitPlan) -> None:
        with _together(self._group):
            self._runner.commit(plan)
        self._kept = plan

    def features(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> NDArray[np.float32]:
        return self._runner.features(rows, layer_ids)

    def features_later(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> StepFeatures:
        return self._runner.features_later(rows, layer_ids)

    def stop(self) -> None:
        """End `follow` on the other ranks; returns when all have heard it."""
        with _together(self._group):
            _send(self._group, _Kind.STOP, np.zeros(0, np.int32))
            self._group.meet()


def follow(runner: Runner, group: Group) -> None:
    """Do what rank 0 does until it stops; raises GroupLost."""
    with _together(group):
        group.meet()
        kind, message = _receive(group)
        while kind is not _Kind.STOP:
            if kind is _Kind.DRAFTS:
                runner.build_trees(decode_drafts(message))
            elif kind is _Kind.FEATURES:
                runner.set_feature_layers(tuple(message.tolist()))
            else:
                kept, plan = decode(message)
                runner.commit(kept)
                runner.execute(plan)
            kind, message = _receive(group)
        group.meet()


def _send(group: Group, kind: _Kind, message: Ints) -> None:
    frame = np.zeros(_FRAME_INTS, np.int32)
    first = message[:_ROOM]
    frame[:_HEADER] = kind, len(message)
    frame[_HEADER : _HEADER + len(first)] = first
    group.broadcast(frame)
    if len(message) > len(first):
        group.broadcast(message[len(first) :])


def _receive(group: Group) -> tuple[_Kind, Ints]:
    frame = np.empty(_FRAME_INTS, np.int32)
    group.broadcast(frame)
    kind, size = _Kind(int(frame[0])), int(frame[1])
    first = frame[_HEADER : _HEADER + min(size, _ROOM)]
    if size <= _ROOM:
        return kind, first
    rest = np.empty(size - _ROOM, np.int32)
    group.broadcast(rest)
    return kind, np.concatenate([first, rest])


@contextmanager
def _together(group: Group) -> Iterator[None]:
    try:
        yield
    except GroupLost:
        raise
    except Exception as error:
        raise GroupLost(f"rank {group.rank} of {group.size} can't go on with the others: {error}") from error
