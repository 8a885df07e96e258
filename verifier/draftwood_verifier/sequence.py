"""The state of one request from admission to its last token."""

import asyncio
import enum
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.sample import SamplingParams
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


# Rounds that a lagging drafter's answers are still timed for.
_TIMED_ROUNDS = 256
# Each replay costs a prefill, and the peer that asks is not trusted.
_REPLAY_LIMIT = 4


class Draft:
    """What a session knows about its drafter: the tree for its current length, and whether it pays to wait for one."""

    __slots__ = (
        "_replays", "_sent_at", "answered", "answered_at", "asked_at", "deadline", "drafter", "features_from",
        "lagging", "node_limit", "replay", "tree",
    )  # fmt: skip

    def __init__(self, drafter: Drafter, *, features_from: int, node_limit: int, lagging: bool) -> None:
        self.drafter = drafter
        self.features_from = features_from
        self.node_limit = node_limit
        self.lagging = lagging  # decodes plainly and is not waited for
        self.tree: TokenTree | None = None
        self.answered = False  # the drafter has said what it has to say about the current length
        self.asked_at = self.answered_at = 0.0  # time.monotonic of the last commit told, and of the answer to it
        self.deadline = 0.0
        self.replay: range | None = None  # positions whose features the drafter asked for and did not get yet
        self._replays = 0
        self._sent_at: dict[int, float] = {}

    def committed(self, length: int, now: float, wait_s: float) -> None:
        """The drafter was just told that the session has `length` tokens."""
        self.tree = None
        self.answered = False
        self.asked_at, self.answered_at = now, 0.0
        self.deadline = now + wait_s
        self._sent_at[length] = now
        if len(self._sent_at) > _TIMED_ROUNDS:
            del self._sent_at[next(iter(self._sent_at))]

    def awaited(self, now: float) -> bool:
        """Whether the round should still wait; a missed deadline ends the waiting for later rounds too."""
        if self.answered or self.lagging:
            return False
        if now < self.deadline:
            return True
        self.lagging = self.drafter.late = True
        return False

    def late_answer(self, base_len: int, now: float, wait_s: float) -> None:
        """An answer about an earlier length: a drafter quick enough to have been waited for is waited for again."""
        sent_at = self._sent_at.get(base_len)
        if self.lagging and sent_at is not None and now - sent_at < wait_s:
            self.lagging = False

    def ask_replay(self, from_position: int) -> bool:
        """Take up a ContextRequest; False when it makes no sense or asks too often."""
        if self.replay is not None or self._replays >= _REPLAY_LIMIT or from_position >= self.features_from:
            return False
        self._replays += 1
        self.replay = range(from_position, self.features_from)
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
    def wants_draft(self) -> bool:
        return self.mode is not DraftMode.OFF and not self.undraftable and not self.done
