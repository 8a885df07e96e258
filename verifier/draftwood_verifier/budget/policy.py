"""Whether to draft, whether to wait for it, and how many nodes to look at: for all sequences in mode auto together.

Speculation is on while measured costs and calibrated trees promise more tokens a second than plain decoding, by more
than such promises fell short lately. While it is off, a few sequences are drafted for now and then and nobody waits:
the tokens committed meanwhile tell what the trees were worth, and how long they took bounds the wait.
"""

import enum
import logging
import math
from collections import defaultdict
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from draftwood_verifier.budget.allocation import Offer, allocate
from draftwood_verifier.budget.calibration import Calibration
from draftwood_verifier.budget.cost_table import CostTable
from draftwood_verifier.budget.gaps import GapTable
from draftwood_verifier.budget.grouping import Grouping
from draftwood_verifier.budget.lessons import Choice, Lessons
from draftwood_verifier.budget.outlook import Outlook
from draftwood_verifier.budget.profile import Profile
from draftwood_verifier.budget.size_class import size_class
from draftwood_verifier.budget.whole_trees import WholeTrees
from draftwood_verifier.budget.wishes import Wishes, is_for_all
from draftwood_wire.tree import TokenTree

_LOG = logging.getLogger(__name__)
# Rounds whose drafts were timed that speculation gets to show what it gives, once it is on; and rounds in any case.
# Not all can be timed: prompts run along, or the drafter has to catch up first.
_TRIAL_ROUNDS, _LONGEST_TRIAL = 6, 24
# Rounds for which a look ahead is good: each takes a core 0.2 ms, which the drafter and everybody else want too.
_FORESEEN_ROUNDS = 4
# Rounds for which the last trees speak: a look sooner than that needs no new ones. Looks are few, and texts change:
# their first tokens are the hardest to guess.
_FRESH_ROUNDS = 12
# Sooner than this after speculation went off, a change of the batch is not a reason to think again.
_SHORTEST_PAUSE = 16
# Rounds' worth of tokens that may be missing in all before speculation ends: one that was held up makes the next few
# look bad, and to decode plainly until the next look costs more than that.
_MISSING = 0.15
# Rounds between two plain ones that keep the plain side of the costs fresh; where speculation promises so much more
# than plain decoding that a stale cost can't mislead, they are seldom.
_PLAIN_EVERY, _PLAIN_SELDOM = 96, 384
_CLEARLY_MORE = 1.25
_LEAST_SHORTFALL, _MOST_SHORTFALL = 0.02, 0.2
_OUTCOME_RATE = 0.05
_ROW_RATE = 0.1
# A batch is still the same while so much of it has neither come nor gone.
MOST_ALIKE = 0.75
# Asks are no nearer to each other than this.
_SAME_ASK_S = 1e-6
# A wait much longer than usual is given up, for all who wait: so that must not be one in which the drafter only had to
# take in a new request's prompt first. With 20 ms, 4 % of the rounds of four clients on two cores ended like that.
_PATIENCE = 4.0
_LEAST_WAIT_S = 0.06


class Ask(enum.Enum):
    """What the sequences of a round ask of their drafter."""

    NOTHING = "nothing"
    PROBE = "probe"  # of a few, and nobody waits
    DRAFT = "draft"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The sequences that decode together."""

    auto: int  # in mode auto and with a drafter
    sequences: int  # all
    context: float  # mean tokens of all
    sampled: float  # share of those in mode auto at temperature > 0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Nodes that a step looks at in mode auto, and the predicted tokens a second with them and without any."""

    nodes: int
    rate: float
    plain_rate: float


class Policy:
    """One for the whole verifier."""

    def __init__(self, costs: CostTable, *, pauses: GapTable | None = None, groups: int = 0) -> None:
        self.costs = costs
        # At scale 1 of the costs: what slows steps down slows the rest of the loop down too, and mostly the drafts.
        self.waits = GapTable()  # from asking for drafts to the step that looks at them
        self.pauses = pauses or GapTable()  # from a step to the next when nothing is waited for
        self.calibration = Calibration()
        self.profile = Profile()
        self.wishes = Wishes()
        self.whole_trees = WholeTrees()
        self._lessons = Lessons(self.calibration, self.profile, self.wishes, self.whole_trees)
        self.grouping = Grouping(groups)
        self.speculating = True
        self._edges = np.array(costs.axes.nodes, np.float64)
        self._clock = 0  # rounds in all
        self._seen_at = 0  # when the last tree came
        self._late_since = -math.inf  # time.monotonic of the last ask of which an answer came late
        self._mixed_at = -math.inf  # time.monotonic of the last step that did not only decode
        self._turned_at = 0  # the round in which speculation went on or off
        self._row_s: float | None = None  # of a prompt's row beside decoding, at scale 1
        self._timed = 0  # rounds since then whose wait was timed
        self._missing = 0.0  # rounds' worth of tokens that speculation fell short of plain decoding by
        self._auto = 0  # sequences in mode auto of the last round
        self._size: int | None = None  # of the batch that speculation went on for, or that rests
        self._outlooks: defaultdict[int, Outlook] = defaultdict(Outlook)  # by size, like the next
        self._outcomes: dict[int, _Outcomes] = {}
        self._drafted: Batch | None = None  # that the last round asked drafts for, and is yet to be looked ahead of
        self._foreseen: _Foreseen | None = None
        self._asked_for_all = True  # that requests allow, in the last round

    def shortfall(self, sequences: int) -> float:
        """By how much speculation has given less than was promised to a batch of this size, as a share."""
        seen = self._outcomes.get(size_class(sequences))
        missing = 1 - seen.given / seen.promised if seen else 0.0
        return min(max(missing, _LEAST_SHORTFALL), _MOST_SHORTFALL)

    @property
    def resting(self) -> bool:
        """Speculation is off, and the next round is no time to think again, as far as can be foreseen."""
        return self._size is not None and self._rests(self._size)

    def wait_limit_s(self, batch: int, limit_s: float) -> float:
        """How long a round in mode auto waits for its drafts."""
        if not self.waits.knows(batch):
            return limit_s
        return min(limit_s, max(_LEAST_WAIT_S, _PATIENCE * self._wait_s(batch)))

    def drafters_changed(self) -> None:
        """One has come or gone: what the last ones took says nothing about the next, which gets its trial."""
        self.waits = GapTable()
        self.grouping.start_over()
        self.speculating = True
        self._turned_at, self._timed, self._size, self._missing = self._clock, 0, None, 0.0
        self._outlooks.clear()
        self._outcomes.clear()
        self._drafted = self._foreseen = None

    def sleep_on(self, auto: int) -> bool:
        """Let a round pass in which so many sequences in mode auto ask for nothing; False, and nothing done, where that
        is yet to be decided."""
        size = size_class(auto)
        if not self._rests(size):
            return False
        self._clock += 1
        self._size, self._auto = size, auto
        return True

    def next_ask(self, batch: Batch) -> Ask:
        """For the round to come."""
        self._clock += 1
        self._auto = batch.auto
        ask = self._while_speculating(batch) if self.speculating else self._while_plain(batch)
        self._drafted = batch if ask is Ask.DRAFT else None
        return ask

    def look_ahead(self) -> None:
        """While drafts are under way: what `choose` and `next_ask` would have to work out while somebody waits."""
        batch, self._drafted = self._drafted, None
        if batch is None:
            return
        self.costs.curve(batch.sequences, batch.context)  # which is kept until the next step
        if self._known_rates(batch, self._clock + 1) is None:
            self._foreseen = _Foreseen(size_class(batch.auto), self._clock + _FORESEEN_ROUNDS, self.rates(batch))

    def rates(self, batch: Batch, *, wait_share: float = 1.0) -> tuple[float, float]:
        """Predicted tokens a second: without any draft, and with drafts for all in mode auto at the best size."""
        self._lessons.take_in()
        curve, pause_s = np.array(self.costs.curve(batch.sequences, batch.context)), self._pause_s(batch.sequences)
        accepted = batch.auto * self.profile.tokens(self._edges / max(1, batch.auto), batch.sampled)
        # The loop's own time passes in any case.
        wait_s = max(wait_share * self._wait_s(batch.auto), pause_s)
        plain_rate = batch.sequences / (curve[0] + pause_s)
        return float(plain_rate), float(((batch.sequences + accepted) / (curve + wait_s)).max())

    def choose(
        self, trees: list[TokenTree], sampled: list[bool], batch: Batch, *, pinned_nodes: int, waited: bool
    ) -> tuple[list[TokenTree], Decision]:
        """What this step looks at of each tree. `waited`: somebody had to wait for the trees."""
        if self._are_looked_at_whole(trees, batch):
            plain_rate, rate = self._expected(batch)
            return trees, Decision(nodes=sum(map(len, trees)), rate=rate, plain_rate=plain_rate)
        began_at = perf_counter()
        offer = self._offer(batch, pinned_nodes, waited=waited)
        scores = [self.calibration.scores(tree, sampled=hot) for tree, hot in zip(trees, sampled, strict=True)]
        allocation = allocate(scores, offer)
        chosen = [tree.select(entries) for tree, entries in zip(trees, allocation.entries, strict=True)]
        choice = Choice(
            batch=batch.auto,
            trees=trees,
            scores=scores,
            offer=offer,
            allocation=allocation,
            took_s=perf_counter() - began_at,
            asked_for_all=self._asked_for_all,
        )
        self._lessons.chosen(choice)
        plain_rate = batch.sequences / (offer.seconds[0] + self._pause_s(batch.sequences))
        return chosen, Decision(nodes=allocation.nodes, rate=allocation.rate, plain_rate=plain_rate)

    def nodes_wanted(self, batch: int) -> int | None:
        """What to ask for in this round, of each of so many trees; None: all that their requests allow."""
        fixed = None if is_for_all(self._clock) else self.whole_trees.nodes(batch)
        wanted = fixed or self.wishes.nodes(batch, self._clock)
        self._asked_for_all = wanted is None
        return wanted

    def saw_tree(self, tree: TokenTree, *, sampled: bool, asked: int) -> None:
        """One of the trees that were `asked` for together has come, in time or not."""
        self._lessons.came(tree, sampled=sampled, asked=asked, round_number=self._clock)
        self._seen_at = self._clock
        if not self.speculating and self._size is not None:
            self._outlooks[self._size].answered(self._clock)

    def saw_wait(self, batch: int, seconds: float, *, adaptive: bool) -> None:
        """A step came so long after the last because `batch` sessions waited for drafts, some in mode auto or none."""
        self.waits.observe(batch, seconds / self.costs.scale)
        self._timed += adaptive

    def saw_pause(self, sequences: int, seconds: float) -> None:
        """A step came so long after the last, and nobody waited for a draft."""
        self.pauses.observe(sequences, seconds / self.costs.scale)

    def saw_mixed_step(self, now: float) -> None:
        """A step that did not only decode has been computed."""
        self._mixed_at = now

    def saw_rows_beside(self, rows: int, seconds: float) -> None:
        """So many rows of prompts made a step that decodes so much longer."""
        at_scale_1 = max(0.0, seconds) / (rows * self.costs.scale)
        self._row_s = at_scale_1 if self._row_s is None else self._row_s + _ROW_RATE * (at_scale_1 - self._row_s)

    def beside_s(self, rows: int) -> float:
        """What rows of prompts take beside decoding; all the time that there is before that was seen."""
        return math.inf if self._row_s is None else rows * self._row_s * self.costs.scale

    def saw_late_answer(self, batch: int, seconds: float, now: float) -> None:
        """A tree for one of `batch` sessions came after the round had gone on without it; the first of them counts."""
        if now - seconds <= self._late_since + _SAME_ASK_S:
            return
        self._late_since = now - seconds
        at_scale_1 = seconds / self.costs.scale
        if not self.speculating:
            self.waits.lower(batch, at_scale_1)
        elif now - seconds > self._mixed_at or (not self.waits.knows(batch) and self._is_like_now(batch)):
            # Beside prompts everything takes longer, but better that than nothing. While a load comes up it is all
            # about those who come: of a burst of 64, what ten waited would be held against ten for long.
            self.waits.observe(batch, at_scale_1)

    def saw_outcome(self, decision: Decision, *, sequences: int, tokens: int, seconds: float) -> None:
        """What a step with drafts gave, its wait included."""
        seen = self._outcomes.setdefault(size_class(sequences), _Outcomes())
        seen.promised += _OUTCOME_RATE * (decision.rate * seconds - seen.promised)
        seen.given += _OUTCOME_RATE * (tokens - seen.given)

    def _offer(self, batch: Batch, pinned_nodes: int, *, waited: bool) -> Offer:
        return Offer(
            sequences=batch.sequences,
            pinned_nodes=pinned_nodes,
            edges=self.costs.axes.nodes,
            seconds=self.costs.curve(batch.sequences, batch.context),
            wait_s=self._wait_s(batch.auto) if waited else self._pause_s(batch.sequences),
        )

    def _are_looked_at_whole(self, trees: list[TokenTree], batch: Batch) -> bool:
        size = None if self._asked_for_all else self.whole_trees.nodes(batch.auto)
        return size is not None and max(map(len, trees)) <= size

    def _is_like_now(self, asked: int) -> bool:
        """Whether about as many decode now as were asked for together, all of them or one of two groups."""
        before = asked * self.grouping.groups
        return min(before, self._auto) >= MOST_ALIKE * max(before, self._auto)

    def _wait_s(self, batch: int) -> float:
        return self.costs.scale * self.waits.seconds(batch)

    def _pause_s(self, sequences: int) -> float:
        return self.costs.scale * self.pauses.seconds(sequences)

    def _expected(self, batch: Batch) -> tuple[float, float]:
        """`rates`, which for a batch of about this size may be known."""
        return self._known_rates(batch, self._clock) or self.rates(batch)

    def _known_rates(self, batch: Batch, round_number: int) -> tuple[float, float] | None:
        known = self._foreseen
        if known is None or known.size != size_class(batch.auto) or round_number > known.until:
            return None
        return known.rates

    @property
    def _rounds(self) -> int:
        """Since speculation went on or off."""
        return self._clock - self._turned_at

    @property
    def _on_trial(self) -> bool:
        return self._timed < _TRIAL_ROUNDS and self._rounds < _LONGEST_TRIAL

    def _rests(self, size: int) -> bool:
        """Whether a round of a batch of this size, were it the next, is no time to think again."""
        return not self.speculating and self._clock + 1 < self._think_at(size)

    def _think_at(self, size: int) -> int:
        """The round in which a batch of this size is a reason to think again."""
        return max(self._outlooks[size].next_look, self._turned_at + _SHORTEST_PAUSE)

    def _while_speculating(self, batch: Batch) -> Ask:
        # A trial was promised something for a batch of its size; the first one is for whatever comes.
        if self._on_trial and self._size in (None, size_class(batch.auto)):
            return Ask.DRAFT
        plain, speculative = self._expected(batch)
        if self._rounds % (_PLAIN_EVERY if speculative < _CLEARLY_MORE * plain else _PLAIN_SELDOM) == 0:
            return Ask.NOTHING
        missing = plain * (1 + self.shortfall(batch.sequences) / 2) / speculative - 1
        self._missing = max(0.0, self._missing + missing)
        if self._missing <= _MISSING:
            return Ask.DRAFT
        self._outlooks[size_class(batch.auto)].gave_up(self._clock, soon=self._rounds <= _LONGEST_TRIAL)
        self._turn(on=False, batch=batch)
        return Ask.NOTHING

    def _while_plain(self, batch: Batch) -> Ask:
        self._size = size_class(batch.auto)
        if self._clock < self._think_at(self._size):
            return Ask.NOTHING
        outlook = self._outlooks[self._size]
        self._lessons.take_in()
        self.profile.score_again(self.calibration)
        plain, speculative = self.rates(batch, wait_share=outlook.hope)
        if speculative > plain * (1 + self.shortfall(batch.sequences)):
            outlook.tried()
            self._turn(on=True, batch=batch)
            return Ask.DRAFT
        outlook.found_nothing(self._clock)
        return Ask.NOTHING if self._clock - self._seen_at < _FRESH_ROUNDS else Ask.PROBE

    def _turn(self, *, on: bool, batch: Batch) -> None:
        plain, speculative = self.rates(batch)
        _LOG.debug(
            "speculation %s after %d rounds: %d sequences, %.0f context, predicted %.1f tokens/s against %.1f plain",
            "on" if on else "off",
            self._rounds,
            batch.sequences,
            batch.context,
            speculative,
            plain,
        )
        self.speculating = on
        self._turned_at, self._timed, self._missing = self._clock, 0, 0.0
        self._size = size_class(batch.auto)


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """`Policy.rates` of batches of a size, until a round."""

    size: int
    until: int
    rates: tuple[float, float]


@dataclass(slots=True)
class _Outcomes:
    """Averages that forget."""

    promised: float = 0.0
    given: float = 0.0
