"""What a step holds: who takes part, in which segments, within which budget."""

import dataclasses

import numpy as np
import pytest

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.backlog import Backlog
from draftwood_verifier.budget.cost_table import Axes, CostTable
from draftwood_verifier.budget.grouping import Grouping
from draftwood_verifier.budget.policy import Batch, Policy
from draftwood_verifier.scheduler import Scheduler, SegmentKind, Step, batch_of
from draftwood_verifier.sequence import Draft, DraftMode, Sequence
from draftwood_verifier.step_features import Rows, ready
from draftwood_wire.errors import InvalidRequest, Overloaded
from draftwood_wire.tree import TokenTree


class Quiet:
    """A drafter that says nothing."""

    congested = False
    late = False


def make_scheduler(**options: int) -> Scheduler:
    policy = Policy(CostTable(Axes(sequences=(1, 2, 4))))
    return Scheduler(
        policy, **{"pages": 32, "page_size": 4, "max_batch": 4, "max_waiting": 8, "prefill_chunk": 8, **options}
    )


def make_sequence(session_id: int, prompt_len: int = 6, max_tokens: int = 10, node_limit: int = 16) -> Sequence:
    return Sequence(
        session_id=session_id,
        tokens=[session_id * 100 + i for i in range(prompt_len)],
        prompt_len=prompt_len,
        length_limit=prompt_len + max_tokens,
        stop_ids=frozenset(),
        sampling=SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0),
        mode=DraftMode.TREE,
        node_limit=node_limit,
    )


def decoding(scheduler: Scheduler, session_id: int, **options: int) -> Sequence:
    sequence = make_sequence(session_id, **options)
    scheduler.add(sequence)
    scheduler.start_waiting()
    sequence.computed = sequence.prompt_len
    sequence.tokens.append(session_id)
    return sequence


def kinds(step: Step | None) -> list[tuple[int, SegmentKind, int, int]]:
    assert step is not None
    return [(s.sequence.session_id, s.kind, s.start, s.rows) for s in step.segments]


def test_prefill_and_decode_share_a_step_within_the_budget() -> None:
    scheduler = make_scheduler()
    decoding(scheduler, 1)
    for session_id in (2, 3):
        scheduler.add(make_sequence(session_id))
    scheduler.start_waiting()
    step = scheduler.schedule(scheduler.decoding(0.0))
    assert step is not None
    assert kinds(step) == [
        (1, SegmentKind.DECODE, 6, 1),
        (2, SegmentKind.PREFILL, 0, 6),
        (3, SegmentKind.PREFILL, 0, 2),
    ]
    plan = step.plan
    assert plan.row_offsets.tolist() == [0, 1, 7, 9]
    assert plan.logit_rows.tolist() == [0, 6]  # the third prompt is not done
    assert [w.position for w in plan.walks] == [7, 6]
    assert plan.parents.tolist() == [-1, -1, 0, 1, 2, 3, 4, -1, 0]
    assert plan.prefix_lens.tolist() == [6, 0, 0]


def test_first_come_first_served_and_no_overtaking() -> None:
    scheduler = make_scheduler(pages=8)
    scheduler.add(make_sequence(1, max_tokens=19))  # six pages
    scheduler.add(make_sequence(2, max_tokens=19))
    scheduler.add(make_sequence(3, max_tokens=1))
    assert [s.session_id for s in scheduler.start_waiting()] == [1]
    assert scheduler.start_waiting() == []
    scheduler.remove(scheduler.running[0])
    assert [s.session_id for s in scheduler.start_waiting()] == [2, 3]
    scheduler.check_ledger()


def test_refusals() -> None:
    scheduler = make_scheduler(pages=4, max_waiting=1)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        scheduler.add(make_sequence(1, max_tokens=12))
    scheduler.add(make_sequence(1, max_tokens=11))  # 17 tokens: the last needs no KV
    with pytest.raises(Overloaded):
        scheduler.add(make_sequence(2))
    assert len(scheduler.start_waiting()) == 1


def draft(sequence: Sequence, drafter: Quiet, deadline: float = 10.0) -> Draft:
    sequence.draft = own = Draft(drafter, backlog=backlog(6), node_limit=16, lagging=False)
    ask(own, len(sequence.tokens), 0.0, deadline)
    return own


def backlog(features_from: int) -> Backlog:
    return Backlog([], features_from=features_from, prefilled=True)


def ask(own: Draft, length: int, now: float, wait_s: float) -> None:
    own.ask(length, now, size=1, wait_s=wait_s)
    own.committed(length)


def test_sessions_of_a_drafter_go_together_and_others_do_not_wait() -> None:
    scheduler = make_scheduler()
    one, two, three, plain = (decoding(scheduler, i) for i in (1, 2, 3, 4))
    drafter, other = Quiet(), Quiet()
    draft(one, drafter).answered = True
    draft(two, drafter, deadline=5.0)
    draft(three, other).answered = True
    assert [k[0] for k in kinds(scheduler.schedule(scheduler.decoding(1.0)))] == [3, 4]
    assert scheduler.next_deadline(1.0) == 5.0
    scheduler.remove(three)
    scheduler.remove(plain)
    assert scheduler.schedule(scheduler.decoding(4.9)) is None
    assert [k[0] for k in kinds(scheduler.schedule(scheduler.decoding(5.0)))] == [1, 2]
    assert (drafter.late, other.late) == (True, False)
    # Two is lagging now: it goes on plainly while one is waited for.
    for sequence in (one, two):
        assert sequence.draft is not None
        ask(sequence.draft, 8, 6.0, 5.0)
    assert [k[0] for k in kinds(scheduler.schedule(scheduler.decoding(6.1)))] == [2]


def test_prompts_wait_for_drafts_no_longer_than_for_a_step_of_the_others() -> None:
    scheduler = make_scheduler()
    one = decoding(scheduler, 1)
    own = draft(one, Quiet())
    ask(own, 7, 1.0, 5.0)
    scheduler.decoded(0.5)
    assert scheduler.prompts_wait_until(1.2) is None  # there are none
    scheduler.add(make_sequence(2))
    scheduler.start_waiting()
    assert scheduler.prompts_wait_until(1.2) == 1.5
    assert scheduler.prompts_wait_until(1.5) is None
    own.deadline = 1.3
    assert scheduler.prompts_wait_until(1.2) == 1.3
    own.answered = True
    assert scheduler.prompts_wait_until(1.2) is None


def test_prompts_do_not_wait_where_the_drafter_waits_for_features() -> None:
    scheduler = make_scheduler()
    own = draft(decoding(scheduler, 1), Quiet())
    ask(own, 7, 1.0, 5.0)
    scheduler.decoded(0.5)
    scheduler.add(make_sequence(2))
    scheduler.start_waiting()
    own.replay = range(2)
    assert scheduler.prompts_wait_until(1.2) is None


def test_two_groups_of_a_drafter_take_turns() -> None:
    scheduler = make_scheduler()
    scheduler.policy.grouping = Grouping(2)
    one, two, three, plain = (decoding(scheduler, i) for i in (1, 2, 3, 4))
    drafter = Quiet()
    for sequence, group in ((one, 0), (two, 1), (three, 0)):
        draft(sequence, drafter).group = group
        sequence.draft.asked_at = float(group)  # type: ignore[union-attr]
    assert plain.draft is None
    two.draft.answered = True  # type: ignore[union-attr]
    # Two need not wait for the drafts of the other group.
    assert [k[0] for k in kinds(scheduler.schedule(scheduler.decoding(1.0)))] == [2, 4]
    for sequence in (one, three):
        sequence.draft.answered = True  # type: ignore[union-attr]
    # All are ready: those go first that asked first, and the others after them.
    assert [k[0] for k in kinds(scheduler.schedule(scheduler.decoding(1.0)))] == [1, 3, 4]
    for sequence in (one, three):
        ask(sequence.draft, 8, 1.0, 5.0)  # type: ignore[arg-type]
    assert [k[0] for k in kinds(scheduler.schedule(scheduler.decoding(1.1)))] == [2, 4]


def test_groups_go_by_the_sessions_that_are_drafted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler()
    loads: list[int] = []
    monkeypatch.setattr(scheduler.policy.grouping, "turn_to", loads.append)
    one, two, _ = (decoding(scheduler, i) for i in (1, 2, 3))
    scheduler.decoding(0.0)
    draft(one, Quiet())
    draft(two, Quiet()).answered = True
    scheduler.decoding(0.0)
    assert loads == [0, 2]


def test_trees_are_cut_to_the_node_limit_and_to_the_tokens_left() -> None:
    tree = TokenTree(
        token_ids=np.array([1, 2, 3, 4, 5], np.int32),
        parents=np.array([0, 1, 0, 2, 3], np.int32),
        log_probs=np.zeros(5, np.float32),
    )

    def rows(**options: int) -> tuple[list[int], list[int]]:
        scheduler = make_scheduler()
        sequence = decoding(scheduler, 9, **options)
        own = draft(sequence, Quiet())
        own.tree, own.answered = tree, True
        step = scheduler.schedule(scheduler.decoding(0.0))
        assert step is not None
        assert step.plan.logit_rows.tolist() == list(range(len(step.plan.token_ids)))
        return step.plan.token_ids.tolist(), step.plan.parents.tolist()

    assert rows() == ([9, 1, 2, 3, 4, 5], [-1, 0, 1, 0, 2, 3])
    assert rows(node_limit=2) == ([9, 1, 2], [-1, 0, 1])
    assert rows(max_tokens=4) == ([9, 1, 2, 3, 5], [-1, 0, 1, 0, 3])  # depth 3 is of no use
    assert rows(max_tokens=3) == ([9, 1, 3], [-1, 0, 0])
    assert rows(max_tokens=2) == ([9], [-1])


def test_a_tree_in_mode_auto_has_to_be_worth_it_unless_it_is_a_probe() -> None:
    tree = TokenTree(
        token_ids=np.array([1, 2], np.int32),
        parents=np.array([0, 1], np.int32),
        log_probs=np.log([0.5, 0.2], dtype="f4"),
    )
    scheduler = make_scheduler()
    axes = scheduler.policy.costs.axes
    # A node costs as much as a hundred plain steps.
    scheduler.policy.costs = CostTable(axes, [[[1.0 + 100 * n for n in axes.nodes] for _ in axes.sequences]] * 2)
    sequence = decoding(scheduler, 9)
    sequence.mode = DraftMode.AUTO
    own = draft(sequence, Quiet())
    own.tree, own.answered = tree, True

    def nodes() -> int:
        step = scheduler.schedule(scheduler.decoding(0.0))
        assert step is not None
        return len(step.plan.walks[0].tree)

    assert nodes() == 0
    own.probing = True
    assert nodes() == 2
    own.probing, sequence.mode = False, DraftMode.TREE
    assert nodes() == 2


def test_a_batch_as_the_policy_sees_it() -> None:
    scheduler, drafter = make_scheduler(), Quiet()
    pinned, greedy, hot, without = (decoding(scheduler, number, prompt_len=4 * number) for number in range(1, 5))
    for sequence in (greedy, hot, without):
        sequence.mode = DraftMode.AUTO
    for sequence in (pinned, greedy, hot):
        draft(sequence, drafter)
    for sequence in (pinned, hot, without):
        sequence.sampling = dataclasses.replace(sequence.sampling, temperature=1.0)
    # Of the four, two are in mode auto and have a drafter, and one of those is sampled.
    assert batch_of([pinned, greedy, hot, without]) == Batch(auto=2, sequences=4, context=11.0, sampled=0.5)
    assert batch_of([pinned]) == Batch(auto=0, sequences=1, context=5.0, sampled=0.0)
    assert batch_of([]) == Batch(auto=0, sequences=0, context=0.0, sampled=0.0)


def test_a_walk_knows_the_row_its_tree_was_drawn_from() -> None:
    scheduler = make_scheduler()
    sequence = decoding(scheduler, 9)
    own = draft(sequence, Quiet())
    own.tree = TokenTree(
        token_ids=np.array([1], np.int32), parents=np.array([0], np.int32), log_probs=np.zeros(1, np.float32)
    )
    own.draft_row = 5

    def row() -> int:
        step = scheduler.schedule([sequence])
        assert step is not None
        return step.plan.walks[0].draft_row

    assert row() == 5
    own.committed(8)
    assert row() == -1
    own.draft_row = 5  # of a tree that was refused
    assert row() == -1


def test_replay_runs_beside_decoding_and_shares_the_budget_with_prompts() -> None:
    scheduler = make_scheduler()
    sequence = decoding(scheduler, 1)
    own = draft(sequence, Quiet())
    assert own.ask_replay(1)
    assert not own.ask_replay(0)  # one at a time
    assert kinds(scheduler.schedule(scheduler.decoding(0.0))) == [(1, SegmentKind.REPLAY, 1, 5)]
    scheduler.add(make_sequence(2))
    scheduler.start_waiting()
    step = scheduler.schedule(scheduler.decoding(20.0))  # past the deadline
    assert kinds(step) == [(1, SegmentKind.DECODE, 6, 1), (1, SegmentKind.REPLAY, 1, 4), (2, SegmentKind.PREFILL, 0, 4)]
    assert step is not None
    assert [walk.segment for walk in step.plan.walks] == [0]


def test_a_lagging_drafter_is_waited_for_again_once_it_is_quick_enough() -> None:
    own = Draft(Quiet(), backlog=backlog(0), node_limit=4, lagging=False)
    ask(own, 10, 0.0, 0.2)
    assert own.awaited(0.1)
    assert not own.awaited(0.2)
    ask(own, 11, 0.3, 0.2)
    ask(own, 12, 0.4, 0.2)
    own.late_answer(11, 0.55, 0.2)  # took longer than a round would wait
    assert not own.awaited(0.55)
    own.late_answer(12, 0.56, 0.2)
    assert own.awaited(0.56)


def test_a_round_is_held_up_by_a_missed_deadline_and_not_by_a_drafter_that_lags() -> None:
    own = Draft(Quiet(), backlog=backlog(0), node_limit=4, lagging=False)
    ask(own, 10, 0.0, 0.2)
    assert not own.awaited(0.2)
    assert own.held_up
    ask(own, 11, 0.3, 0.2)
    assert not own.awaited(0.3)
    assert not own.held_up


def test_an_answer_that_took_the_drafter_more_than_a_commit_is_not_timed() -> None:
    own = Draft(Quiet(), backlog=backlog(0), node_limit=4, lagging=False)
    row = Rows(ready(np.zeros((1, 2), np.float32)), 0, 1)
    ask(own, 10, 0.0, 0.2)
    assert own.behind
    assert own.late_answer(10, 0.9, 0.2) is None  # about the whole prompt
    own.backlog.hold_tokens(1, [1], row, 0)
    ask(own, 11, 1.0, 0.2)
    assert not own.behind
    assert own.late_answer(11, 1.1, 0.2) == pytest.approx(0.1)
    own.backlog.hold_tokens(2, [1], row, 0)
    ask(own, 12, 2.0, 0.2)
    assert own.behind
    assert own.late_answer(12, 2.9, 0.2) is None
    assert own.late_answer(13, 2.9, 0.2) is None  # nobody asked


def plain_step(scheduler: Scheduler) -> Step:
    step = scheduler.schedule(scheduler.decoding(0.0))
    assert step is not None
    assert step.is_plain
    return step


def test_a_step_behind_plain_rows_is_a_position_on() -> None:
    scheduler = make_scheduler()
    first, second, third = (decoding(scheduler, number, max_tokens=10) for number in (1, 2, 3))
    step = plain_step(scheduler)
    second.tokens += [5] * 8  # the step gives its last one
    scheduler.remove(third)  # its client has gone
    behind = scheduler.behind(step)
    assert kinds(behind) == [(1, SegmentKind.DECODE, 7, 1)]
    assert behind is not None
    plan = behind.plan
    assert plan.drawn is not None
    assert plan.drawn.tolist() == [0]
    assert plan.positions.tolist() == plan.prefix_lens.tolist() == [7]
    assert [(walk.position, walk.first_logit, walk.root_row) for walk in plan.walks] == [(8, 0, 0)]
    assert first.tokens == [*range(100, 106), 1]


def test_nothing_is_behind_where_all_may_end() -> None:
    scheduler = make_scheduler()
    decoding(scheduler, 1, max_tokens=2)
    assert scheduler.behind(plain_step(scheduler)) is None


def test_nothing_is_behind_while_somebody_has_other_work() -> None:
    scheduler = make_scheduler(max_batch=2)
    sequence = decoding(scheduler, 1)
    step = plain_step(scheduler)
    assert scheduler.behind(step) is not None
    scheduler.add(make_sequence(2))
    assert scheduler.behind(step) is None  # the request that waits could start
    other = decoding(scheduler, 3)
    assert other not in scheduler.running
    assert scheduler.behind(step) is None  # it runs, and is not in the step
    scheduler.remove(next(s for s in scheduler.running if s is not sequence))
    scheduler.remove(other)
    assert scheduler.behind(step) is not None


def test_a_line_that_can_not_move_holds_nobody_up() -> None:
    scheduler = make_scheduler(max_batch=1)
    decoding(scheduler, 1)
    step = plain_step(scheduler)
    scheduler.add(make_sequence(2))
    assert scheduler.behind(step) is not None


def test_nothing_is_behind_a_session_that_may_get_a_tree() -> None:
    scheduler = make_scheduler()
    sequence = decoding(scheduler, 1)
    own = draft(sequence, Quiet())
    own.answered = True
    step = plain_step(scheduler)
    assert scheduler.behind(step) is None
    sequence.mode = DraftMode.AUTO
    assert scheduler.behind(step) is None
    scheduler.policy.speculating = False
    assert scheduler.policy.sleep_on(1)
    assert scheduler.behind(step) is not None
    own.tree = chain_of(2)
    assert scheduler.behind(step) is None
    own.tree, own.replay = None, range(2)
    assert scheduler.behind(step) is None
    own.replay = None
    assert scheduler.behind(step) is not None
    while scheduler.policy.sleep_on(1):
        pass  # until the next round thinks again
    assert scheduler.behind(step) is None


def test_nothing_is_behind_a_tree_or_a_prompt() -> None:
    scheduler = make_scheduler()
    sequence = decoding(scheduler, 1)
    own = draft(sequence, Quiet())
    own.answered, own.tree = True, chain_of(2)
    with_tree = scheduler.schedule(scheduler.decoding(0.0))
    assert with_tree is not None
    sequence.draft = None
    assert scheduler.behind(with_tree) is None
    scheduler.add(make_sequence(2))
    scheduler.start_waiting()
    with_prompt = scheduler.schedule(scheduler.decoding(0.0))
    assert with_prompt is not None
    assert scheduler.behind(with_prompt) is None


def chain_of(nodes: int) -> TokenTree:
    ids = np.arange(nodes, dtype=np.int32)
    return TokenTree(token_ids=ids, parents=ids, log_probs=-0.1 * (1 + ids).astype(np.float32))
