"""Which rows run next: first come, first served into the running set, then one flat plan over all that is ready."""

import enum
import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from draftwood_verifier.budget.policy import Batch, Decision, Policy
from draftwood_verifier.cache.allocator import PageAllocator
from draftwood_verifier.cache.prefix import PrefixCache
from draftwood_verifier.plan import StepPlan, Walk
from draftwood_verifier.sequence import Draft, Drafter, Sequence
from draftwood_wire.errors import InvalidRequest, Overloaded
from draftwood_wire.tree import EMPTY_TREE, TokenTree


class SegmentKind(enum.Enum):
    DECODE = "decode"
    PREFILL = "prefill"
    REPLAY = "replay"  # features only; its KV is in the pages already


@dataclass(frozen=True, slots=True)
class Segment:
    sequence: Sequence
    kind: SegmentKind
    first_row: int
    rows: int
    start: int  # position of the first row


@dataclass(frozen=True, slots=True)
class Step:
    plan: StepPlan
    segments: list[Segment]
    decision: Decision | None  # of the sequences in mode auto that had a tree

    @property
    def is_plain(self) -> bool:
        """Roots alone."""
        return all(segment.kind is SegmentKind.DECODE and segment.rows == 1 for segment in self.segments)


class Scheduler:
    """Owns the waiting line, the running set and the pages of both."""

    def __init__(
        self, policy: Policy, *, pages: int, page_size: int, max_batch: int, max_waiting: int, prefill_chunk: int
    ) -> None:
        self.policy = policy
        self.page_size = page_size
        self.allocator = PageAllocator(pages)
        self.prefix = PrefixCache(self.allocator, page_size)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._prefill_chunk = prefill_chunk
        self._too_few = -1  # available pages when the first in line did not fit; it is not tried again with as many
        self._decoding_s = 0.0  # of the last step that decoded

    @property
    def token_capacity(self) -> int:
        """Longest prompt and completion that the pool could ever hold; the last token needs no KV."""
        return self.allocator.total * self.page_size + 1

    def add(self, sequence: Sequence) -> None:
        """Put a request in line; raises InvalidRequest when it can never run, Overloaded when the line is full."""
        if sequence.length_limit > self.token_capacity:
            raise InvalidRequest(
                f"max_tokens: prompt and completion of {sequence.length_limit} tokens need more than "
                f"the KV cache of {self.token_capacity} tokens"
            )
        if len(self.waiting) >= self._max_waiting:
            raise Overloaded(f"{len(self.waiting)} requests are waiting already")
        self.waiting.append(sequence)

    def start_waiting(self) -> list[Sequence]:
        """Move requests from the line into the running set, in order, while batch and pages last."""
        started: list[Sequence] = []
        while self._may_start:
            if not self._reserve(self.waiting[0]):
                self._too_few = self.allocator.available
                break
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            started.append(sequence)
        return started

    def remove(self, sequence: Sequence) -> None:
        """Take a request out wherever it is and let go of its pages."""
        if sequence.done:
            return
        sequence.done = True
        if sequence in self.running:
            self.running.remove(sequence)
            self.allocator.release(sequence.pages)
            sequence.pages = []
            self._too_few = -1
        else:
            self.waiting.remove(sequence)
            self._too_few = -1

    def publish(self, sequence: Sequence) -> None:
        """Offer the session's full pages to later prompts."""
        if sequence.computed // self.page_size > len(sequence.page_keys):
            self.prefix.publish(sequence.tokens, sequence.pages, sequence.page_keys, sequence.computed)

    def schedule(self, decoding: list[Sequence]) -> Step | None:
        """The next step: all of `decoding`, with as much of prompts and replays as fits; None when that is nothing."""
        rows = _Rows()
        budget = self._prefill_chunk
        replays = [s for s in self.running if _replays(s)]
        trees, decision = self._trees(decoding)
        for sequence, tree in zip(decoding, trees, strict=True):
            rows.add_decode(sequence, tree)
        # Half of the budget each, so that neither prompts nor late drafters starve.
        replay_budget = budget // 2 if any(not s.prefilled for s in self.running) else budget
        for sequence in replays:
            replay_budget -= rows.add_replay(sequence, replay_budget)
        if replays:
            budget = max(1, budget // 2)
        for sequence in self.running:
            if not sequence.prefilled:
                budget -= rows.add_prefill(sequence, budget)
        return rows.step(decision)

    def behind(self, step: Step) -> Step | None:
        """The step after one of plain rows whose tokens nobody knows yet: a row each, a position on.

        None where another step could be next: somebody else has work, a draft may be of use, or all may have ended.
        """
        if not self._goes_on(step):
            return None
        rows = _Rows()
        for walk, segment in enumerate(step.segments):
            sequence = segment.sequence
            if not sequence.done and len(sequence.tokens) + 1 < sequence.length_limit:
                rows.add_drawn(sequence, walk)
        return rows.step(None)

    def decoding(self, now: float) -> list[Sequence]:
        """Those that can decode now without waiting for a drafter."""
        self.policy.grouping.turn_to(sum([_waits(s) for s in self.running]))
        held = self._held(now)
        decoding = [s for s in self.running if s.prefilled and not (held and self._is_held(s, held))]
        return _by_turns(decoding) if self.policy.grouping.groups > 1 else decoding

    def decoded(self, seconds: float) -> None:
        """A step with decoding took so long."""
        self._decoding_s = seconds

    def prompts_wait_until(self, now: float) -> float | None:
        """When nothing can decode without drafts that are under way: until when prompts wait for them as well.

        Beside the decoding that follows their rows cost little; in a step of their own they pay for the target's
        weights once more, and their session asks for a draft that all others have to wait for. They wait no longer than
        they would for a step of the others in plain decoding. None: they need not, or there are none.
        """
        if all(s.prefilled for s in self.running) or any(_replays(s) for s in self.running):
            return None
        drafts = [s.draft for s in self.running if s.draft is not None and _awaited(s, now)]
        until = min((draft.asked_at for draft in drafts), default=-math.inf) + self._decoding_s
        return min(until, *(draft.deadline for draft in drafts)) if now < until else None

    def batch(self, joining: list[Sequence]) -> Batch:
        """All that decode in the next round, those that get their first token now included."""
        return batch_of([s for s in self.running if s.prefilled or s in joining])

    def next_deadline(self, now: float) -> float | None:
        """When the first of the awaited drafters is given up."""
        deadlines = [s.draft.deadline for s in self.running if _awaited(s, now) and s.draft is not None]
        return min(deadlines, default=None)

    def check_ledger(self) -> None:
        """Assert that every page is free, held by a running session, or cached."""
        self.allocator.check_ledger([sequence.pages for sequence in self.running])

    @property
    def _may_start(self) -> bool:
        """Whether the first in line is worth a try."""
        full = len(self.running) >= self._max_batch or self.allocator.available == self._too_few
        return bool(self.waiting) and not full

    def _goes_on(self, step: Step) -> bool:
        """Whether plain rows of those in the step are all there is to do next."""
        left = [segment.sequence for segment in step.segments if not segment.sequence.done]
        return (
            step.is_plain
            and not self._may_start
            and len(left) == len(self.running)
            and all(s.draft is None or self._rests(s, s.draft) for s in left)
        )

    def _rests(self, sequence: Sequence, draft: Draft) -> bool:
        """Whether the session's drafter is not asked, and has left nothing to look at."""
        return sequence.adaptive and self.policy.resting and draft.tree is None and draft.replay is None

    def _trees(self, decoding: list[Sequence]) -> tuple[list[TokenTree], Decision | None]:
        """What each sequence looks at: all of its tree, or in mode auto the part that pays."""
        trees = [_usable_tree(sequence) for sequence in decoding]
        adaptive = [i for i, sequence in enumerate(decoding) if len(trees[i]) and _is_weighed(sequence)]
        if not adaptive:
            return trees, None
        chosen, decision = self.policy.choose(
            [trees[i] for i in adaptive],
            [decoding[i].sampling.temperature > 0 for i in adaptive],
            batch_of(decoding),
            pinned_nodes=sum(map(len, trees)) - sum(len(trees[i]) for i in adaptive),
            waited=any(_waits(decoding[i]) for i in adaptive),
        )
        for i, tree in zip(adaptive, chosen, strict=True):
            trees[i] = tree
        return trees, decision

    def _held(self, now: float) -> set[tuple[Drafter, int]]:
        """Groups of which a drafter owes an answer: they stay together, so that the next draft is one batch too."""
        return {self._group(s.draft) for s in self.running if s.draft is not None and _awaited(s, now)}

    def _is_held(self, sequence: Sequence, held: set[tuple[Drafter, int]]) -> bool:
        draft = sequence.draft
        return draft is not None and not draft.lagging and self._group(draft) in held

    def _group(self, draft: Draft) -> tuple[Drafter, int]:
        return draft.drafter, draft.group if self.policy.grouping.groups > 1 else 0

    def _reserve(self, sequence: Sequence) -> bool:
        # The worst case is reserved here, so nothing is ever preempted.
        needed = math.ceil((sequence.length_limit - 1) / self.page_size)
        cached, keys = self.prefix.match(sequence.tokens)
        idle = sum(self.allocator.is_idle(page) for page in cached)
        if needed - len(cached) > self.allocator.available - idle:
            return False
        for page in cached:
            self.allocator.share(page)
        sequence.pages = cached + self.allocator.allocate(needed - len(cached))
        sequence.block_table = np.array(sequence.pages, np.int32)
        sequence.page_keys = keys
        sequence.computed = sequence.cached_tokens = len(cached) * self.page_size
        return True


def batch_of(sequences: list[Sequence]) -> Batch:
    """Sequences that decode together, as the policy sees them."""
    auto = sampled = context = 0
    for sequence in sequences:
        context += len(sequence.tokens)
        if sequence.draft is not None and sequence.adaptive:
            auto += 1
            sampled += sequence.sampling.temperature > 0
    return Batch(
        auto=auto,
        sequences=len(sequences),
        context=context / max(1, len(sequences)),
        sampled=sampled / max(1, auto),
    )


def _is_weighed(sequence: Sequence) -> bool:
    """Whether the nodes of its tree have to be worth their cost."""
    return sequence.adaptive and sequence.draft is not None and not sequence.draft.probing


def _waits(sequence: Sequence) -> bool:
    return sequence.draft is not None and sequence.draft.waits


def _awaited(sequence: Sequence, now: float) -> bool:
    return sequence.draft is not None and sequence.prefilled and sequence.draft.awaited(now)


def _by_turns(decoding: list[Sequence]) -> list[Sequence]:
    """Of two groups of a drafter that are both ready, the one that asked first; the other goes next."""
    first: dict[Drafter, tuple[float, int]] = {}
    for sequence in decoding:
        draft = sequence.draft
        if draft is not None and draft.waits:
            turn = draft.asked_at, draft.group
            first[draft.drafter] = min(turn, first.get(draft.drafter, turn))
    return [s for s in decoding if s.draft is None or not s.draft.waits or s.draft.group == first[s.draft.drafter][1]]


def _replays(sequence: Sequence) -> bool:
    draft = sequence.draft
    return draft is not None and draft.replay is not None and not draft.drafter.congested


def _usable_tree(sequence: Sequence) -> TokenTree:
    """The session's tree within its node limit, and no deeper than tokens can still be committed."""
    draft = sequence.draft
    if draft is None or draft.tree is None:
        return EMPTY_TREE
    tree = draft.tree.cut(sequence.node_limit)
    # A node at the last allowed position adds nothing: its token is drawn at its parent's row anyway.
    return _no_deeper(tree, sequence.length_limit - len(sequence.tokens) - 1)


def _no_deeper(tree: TokenTree, depth: int) -> TokenTree:
    if depth >= len(tree) or not len(tree):
        return tree
    if depth <= 0:
        return EMPTY_TREE
    return tree.select([entry for entry, its_depth in enumerate(tree.depths[1:]) if its_depth <= depth])


@dataclass(slots=True)
class _Rows:
    """A plan in the making; plain lists, which are cheaper than arrays at these sizes."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)
    walks: list[Walk] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def add_decode(self, sequence: Sequence, tree: TokenTree) -> None:
        """The root and the nodes of its tree; a plain row is a root without nodes."""
        root, start = len(self.token_ids), len(sequence.tokens) - 1
        self._walk(sequence, root, tree, position=start + 1)
        self.logit_rows.extend(range(root, root + 1 + len(tree)))
        self._segment(sequence, SegmentKind.DECODE, 1 + len(tree), start)
        self.token_ids.append(sequence.tokens[start])
        self.positions.append(start)
        self.parents.append(-1)
        if len(tree):
            self.token_ids += tree.token_ids.tolist()
            self.positions += [start + depth for depth in tree.depths[1:]]
            self.parents += tree.parents.tolist()

    def add_drawn(self, sequence: Sequence, walk: int) -> None:
        """A plain row for the token that a walk of the step before draws; rows of no other kind may be beside it."""
        start = len(sequence.tokens)
        self._walk(sequence, len(self.token_ids), EMPTY_TREE, position=start + 1)
        self.logit_rows.append(len(self.token_ids))
        self._segment(sequence, SegmentKind.DECODE, 1, start)
        self.token_ids.append(0)
        self.positions.append(start)
        self.parents.append(-1)
        self.drawn.append(walk)

    def add_prefill(self, sequence: Sequence, budget: int) -> int:
        """The next chunk of the prompt; returns the tokens it takes."""
        count = min(budget, sequence.prompt_len - sequence.computed)
        if count <= 0:
            return 0
        last_row = len(self.token_ids) + count - 1
        if sequence.computed + count == sequence.prompt_len:
            self._walk(sequence, last_row, EMPTY_TREE, position=sequence.prompt_len)
            self.logit_rows.append(last_row)
        self._chunk(sequence, SegmentKind.PREFILL, sequence.computed, count)
        return count

    def add_replay(self, sequence: Sequence, budget: int) -> int:
        """The next chunk of the features that the drafter asked for; returns the tokens it takes."""
        replay = sequence.draft.replay if sequence.draft else None
        assert replay is not None, "no replay was asked for"
        count = min(budget, len(replay))
        if count > 0:
            self._chunk(sequence, SegmentKind.REPLAY, replay.start, count)
        return max(0, count)

    def step(self, decision: Decision | None) -> Step | None:
        if not self.segments:
            return None
        # Tables hold all of a session's pages: what lies behind the prefix is room for the step's own rows.
        plan = StepPlan(
            token_ids=np.array(self.token_ids, np.int32),
            positions=np.array(self.positions, np.int32),
            row_offsets=np.array([s.first_row for s in self.segments] + [len(self.token_ids)], np.int32),
            prefix_lens=np.array([s.start for s in self.segments], np.int32),
            block_tables=[s.sequence.block_table for s in self.segments],
            parents=np.array(self.parents, np.int32),
            logit_rows=np.array(self.logit_rows, np.int32),
            walks=self.walks,
            drawn=np.array(self.drawn, np.int32) if self.drawn else None,
        )
        return Step(plan, self.segments, decision)

    def _chunk(self, sequence: Sequence, kind: SegmentKind, start: int, count: int) -> None:
        self._segment(sequence, kind, count, start)
        self.token_ids += sequence.tokens[start : start + count]
        self.positions.extend(range(start, start + count))
        self.parents.extend(range(-1, count - 1))

    def _segment(self, sequence: Sequence, kind: SegmentKind, rows: int, start: int) -> None:
        self.segments.append(Segment(sequence, kind, len(self.token_ids), rows, start))

    def _walk(self, sequence: Sequence, row: int, tree: TokenTree, *, position: int) -> None:
        self.walks.append(
            Walk(
                segment=len(self.segments),
                first_logit=len(self.logit_rows),
                root_row=row,
                tree=tree,
                position=position,
                sampling=sequence.sampling,
                draft_row=sequence.draft.draft_row if sequence.draft and len(tree) else -1,
            )
        )
