"""The state of one request from admission to its last token."""

import asyncio
import enum
import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.backlog import Backlog
from draftwood_wire.tree import TokenTree


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"


class DraftMode(enum.Enum):
    OFF = "off"
    CHAIN = "chain"
    TREE = "tree"
    AUTO = "auto"  # a tree of as many nodes as pay for themselves


class TokenStream:
    """Committed tokens on their way to one client; a slow reader gets them in larger pieces."""

    __slots__ = ("_error", "_pending", "_waiter", "finish_reason")

    def __init__(self) -> None:
        self.finish_reason: FinishReason | None = None
        self._pending: list[int] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def push(self, tokens: list[int], finish_reason: FinishReason | None) -> None:
        self._pending += tokens
        self.finish_reason = finish_reason
        self._wake()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    async def take(self) -> list[int]:
        """The tokens since the last call, at least one; raises what `fail` was given."""
        while not self._pending and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error
        taken, self._pending = self._pending, []
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Drafter(Protocol):
    """The drafter of a session as the scheduler sees it."""

    late: bool  # it missed a deadline and has not answered since

    @property
    def congested(self) -> bool:
        """Frames pile up: replayed features should wait."""


# Asks whose answers are still timed when they come late.
_TIMED_ROUNDS = 256
# Each replay costs a prefill, and the peer that asks is not trusted.
_REPLAY_LIMIT = 4


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """What a drafter without a head sends in the place of a tree, until it is made one."""

    base_len: int
    rows: NDArray[np.float32]  # [depths, hidden]
    came_at: float  # time.monotonic


class Draft:
    """What a session knows about its drafter: the tree for its current length, and whether it pays to wait for one."""

    __slots__ = (
        "_asked_lagging", "_replays", "_sent_at", "answered", "answered_at", "ask_size", "asked_at", "asked_len",
        "backlog", "behind", "deadline", "draft_row", "drafter", "group", "hidden_states", "lagging", "node_limit",
        "nodes_wanted", "probing", "replay", "rerooted", "round_size", "tree", "waits",
    )  # fmt: skip

    def __init__(self, drafter: Drafter, *, backlog: Backlog, node_limit: int, lagging: bool, group: int = 0) -> None:
        self.drafter = drafter
        self.group = group  # 0 or 1: with whom it goes when a drafter's sessions take turns
        self.backlog = backlog
        self.node_limit = node_limit  # of the request and the drafter
        self.nodes_wanted = node_limit  # of the tree that was last asked for
        self.lagging = lagging  # decodes plainly and is not waited for
        self.tree: TokenTree | None = None
        self.hidden_states: HiddenStates | None = None
        self.rerooted = False  # the tree was drafted for an earlier length
        self.draft_row = -1  # as in `plan.Walk`
        self.asked_len = 0  # the length that a tree was last asked for
        self.ask_size = 0  # sessions that were asked for together
        self.round_size = 1  # trees that stand for the whole batch, of which the one that was asked for is one
        self.waits = False  # the round waits for the answer
        self.behind = False  # the drafter had more than the last commit to take in before it could draft
        self.probing = False  # asked for to learn from: what comes is looked at whole, whatever it is worth
        self.answered = False  # the drafter has said what it has to say about the current length
        self.asked_at = self.answered_at = 0.0  # time.monotonic of the last ask, and of the answer to it
        self.deadline = 0.0
        self.replay: range | None = None  # positions whose features the drafter asked for and did not get yet
        self._asked_lagging = False
        self._replays = 0
        self._sent_at: dict[int, float] = {}

    def ask(
        self,
        length: int,
        now: float,
        *,
        size: int,
        wait_s: float,
        round_size: int = 1,
        nodes: int | None = None,
        probing: bool = False,
    ) -> None:
        """A tree for `length` tokens is asked for, of `nodes` nodes or (None) all it may have, together with those of
        `size` sessions; it is one of `round_size` that stand for the whole batch. wait_s 0: nobody waits."""
        self.probing, self.round_size = probing, round_size
        self.nodes_wanted = self.node_limit if nodes is None else min(nodes, self.node_limit)
        self.behind = not self.backlog.is_current or not self._sent_at
        self._asked_lagging = self.lagging
        self.asked_len, self.waits, self.ask_size = length, wait_s > 0, size
        self.asked_at, self.answered_at = now, 0.0
        self.deadline = now + wait_s
        # The first answer is about the prompt, and one to a drafter that is behind about all that it missed.
        self._sent_at[length] = math.inf if self.behind else now
        if len(self._sent_at) > _TIMED_ROUNDS:
            del self._sent_at[next(iter(self._sent_at))]

    def committed(self, length: int) -> None:
        """The session has `length` tokens now; what was known of its last length is past."""
        self.tree = None
        self.draft_row = -1
        self.rerooted = self.answered = False
        self.waits = self.waits and self.asked_len == length

    @property
    def held_up(self) -> bool:
        """The round waited for the answer, or for its time to run out."""
        return self.waits and not (self.lagging and self._asked_lagging)

    def awaited(self, now: float) -> bool:
        """Whether the round should still wait; a missed deadline ends the waiting for later rounds too."""
        if not self.waits or self.answered or self.lagging:
            return False
        if now < self.deadline:
            return True
        self.lagging = self.drafter.late = True
        return False

    def late_answer(self, base_len: int, now: float, wait_s: float) -> float | None:
        """An answer about an earlier length came: how long it took, None when that says nothing about later ones.

        A drafter quick enough to have been waited for is waited for again.
        """
        sent_at = self._sent_at.get(base_len)
        if sent_at is None or sent_at == math.inf:
            return None
        if self.lagging and now - sent_at < wait_s:
            self.lagging = False
        return now - sent_at

    def ask_replay(self, from_position: int) -> bool:
        """Take up a ContextRequest; False when it makes no sense or asks too often."""
        if self.replay is not None or self._replays >= _REPLAY_LIMIT or from_position >= self.backlog.features_from:
            return False
        self._replays += 1
        self.replay = range(from_position, self.backlog.features_from)
        return True


@dataclass(kw_only=True, eq=False, slots=True)
class Sequence:
    """Positions: the root is the last committed token, whose KV is not in the pages yet."""

    session_id: int
    tokens: list[int]  # prompt + output
    prompt_len: int
    length_limit: int  # prompt + max_tokens, at most the context limit
    stop_ids: frozenset[int]
    sampling: SamplingParams  # seed set
    mode: DraftMode
    node_limit: int
    traceparent: str = ""

    output: TokenStream = field(default_factory=TokenStream)
    pages: list[int] = field(default_factory=list)  # reserved for the longest output when the request starts
    block_table: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # the same ids
    page_keys: list[bytes] = field(default_factory=list)  # prefix keys of the full pages so far
    computed: int = 0  # tokens whose KV is in the pages
    cached_tokens: int = 0
    draft: Draft | None = None
    undraftable: bool = False  # a drafter gave it up
    done: bool = False

    rounds: int = 0
    speculative_rounds: int = 0
    proposed_nodes: int = 0
    accepted_nodes: int = 0

    @property
    def prefilled(self) -> bool:
        return len(self.tokens) > self.prompt_len

    @property
    def adaptive(self) -> bool:
        """How much is drafted for it is the verifier's choice."""
        return self.mode is DraftMode.AUTO

    @property
    def wants_draft(self) -> bool:
        return self.mode is not DraftMode.OFF and not self.undraftable and not self.done
