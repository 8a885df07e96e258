"""The policy against a machine that is simulated: costs, waits and drafters of known worth."""

import dataclasses
import itertools

import numpy as np
import pytest

from draftwood_verifier.budget.cost_table import Axes, CostTable
from draftwood_verifier.budget.policy import Ask, Batch, Policy
from draftwood_wire.tree import TokenTree
from tests.unit.verifier.trees import random_tree

AXES = Axes(sequences=(1, 2, 4, 8), context=(0, 1000))
STEP_S = 0.01


class Machine:
    """Steps of a fixed length, drafts that take `wait_s`, trees of which `right` tokens come true."""

    def __init__(self, policy: Policy, *, wait_s: float, right: int, batch: int = 1) -> None:
        self.policy = policy
        self.wait_s = wait_s
        self.right = right
        self.batch = Batch(auto=batch, sequences=batch, context=100.0, sampled=0.0)
        self.random = np.random.default_rng(1)
        self.asks: list[Ask] = []

    def round(self) -> None:
        """One round as the verifier would live it."""
        sequences = self.batch.sequences
        ask = self.policy.next_ask(self.batch)
        self.asks.append(ask)
        if ask is not Ask.DRAFT:
            self.policy.saw_pause(sequences, 1e-4)
            self.policy.costs.observe(sequences, 0, 100.0, STEP_S)
            if ask is Ask.PROBE:
                self.policy.saw_late_answer(min(2, sequences), self.wait_s, now=0.0)
                self._learn()
            return
        for _ in range(sequences):
            self._learn()
        trees = [random_tree(self.random, 10) for _ in range(sequences)]
        _, decision = self.policy.choose(trees, [False] * sequences, self.batch, pinned_nodes=0, waited=True)
        self.policy.saw_wait(sequences, self.wait_s, adaptive=True)
        self.policy.costs.observe(sequences, decision.nodes, 100.0, STEP_S)
        tokens = sequences * (1 + self.right * (decision.nodes > 0))
        self.policy.saw_outcome(decision, sequences=sequences, tokens=tokens, seconds=self.wait_s + STEP_S)

    def rounds(self, count: int) -> list[Ask]:
        self.asks.clear()
        for _ in range(count):
            self.round()
        return self.asks

    def _learn(self) -> None:
        tree = random_tree(self.random, 10)
        tokens, node = [], 0
        while len(tokens) < self.right and tree.children[node]:
            node = tree.children[node][0]
            tokens.append(int(tree.token_ids[node - 1]))
        self.policy.saw_tree(tree, sampled=False, asked=self.batch.auto)
        self.policy.calibration.observe(tree, [*tokens, -1], sampled=False)


def make_policy(*, groups: int = 0) -> Policy:
    costs = CostTable(AXES, [[[STEP_S] * len(AXES.nodes) for _ in AXES.sequences] for _ in AXES.context])
    return Policy(costs, groups=groups)


def test_a_good_and_quick_drafter_is_used() -> None:
    asks = Machine(make_policy(), wait_s=0.002, right=3).rounds(1000)
    assert [number for number, ask in enumerate(asks, start=1) if ask is not Ask.DRAFT] == [384, 768]


@pytest.mark.parametrize("batch", [1, 8])
def test_a_drafter_that_is_never_right_is_left_alone_after_64_rounds(batch: int) -> None:
    machine = Machine(make_policy(), wait_s=0.002, right=0, batch=batch)
    machine.rounds(64)
    asks = machine.rounds(2000)
    assert asks.count(Ask.DRAFT) <= 20
    assert 1 <= asks.count(Ask.PROBE) <= 4


def test_a_slow_drafter_is_left_alone_however_good() -> None:
    machine = Machine(make_policy(), wait_s=0.2, right=3)
    machine.rounds(64)
    asks = machine.rounds(2000)
    assert asks.count(Ask.DRAFT) <= 20


@pytest.mark.parametrize("batch", [1, 8])
def test_speculation_comes_back_when_the_drafter_got_better(batch: int) -> None:
    machine = Machine(make_policy(), wait_s=0.2, right=3, batch=batch)
    machine.rounds(600)
    machine.wait_s = 0.002
    assert Ask.DRAFT in machine.rounds(3000)
    assert machine.rounds(200).count(Ask.DRAFT) > 150


def test_another_drafter_gets_its_trial_at_once() -> None:
    machine = Machine(make_policy(), wait_s=0.2, right=3)
    machine.rounds(600)
    machine.policy.drafters_changed()
    machine.wait_s = 0.002
    assert machine.rounds(200).count(Ask.DRAFT) > 190


def test_a_smaller_batch_is_a_reason_to_think_again() -> None:
    policy = make_policy()
    crowd = Machine(policy, wait_s=0.2, right=3, batch=8)
    crowd.rounds(100)
    assert not policy.speculating
    policy.waits.observe(1, 0.002)
    alone = Machine(policy, wait_s=0.002, right=3, batch=1)
    assert alone.rounds(40).count(Ask.DRAFT) > 15


def test_a_load_that_swings_between_two_sizes_is_no_news_at_either() -> None:
    policy = make_policy()
    few = Machine(policy, wait_s=0.002, right=0, batch=1)
    many = Machine(policy, wait_s=0.002, right=0, batch=8)
    asks: list[Ask] = []
    for _ in range(50):
        asks += few.rounds(20) + many.rounds(20)
    assert asks.count(Ask.DRAFT) <= 40
    assert 1 <= asks.count(Ask.PROBE) <= 10


def test_rounds_without_a_thought_are_slept_through() -> None:
    policy = make_policy()
    assert not policy.sleep_on(1)
    machine = Machine(policy, wait_s=0.2, right=3)
    while policy.speculating:
        machine.round()
    slept = 0
    while policy.sleep_on(1):
        assert policy.resting == (slept < 30)
        slept += 1
    # A trial that failed at once doubles the first pause; the round in which the time has come is no sleep.
    assert slept == 31
    assert not policy.sleep_on(1)
    assert machine.rounds(1) == [Ask.PROBE]


def test_speculation_that_was_promised_for_few_is_no_trial_for_many() -> None:
    policy = make_policy()
    policy.waits.observe(1, 0.002)
    policy.waits.observe(8, 0.2)
    policy.speculating = False
    alone = Machine(policy, wait_s=0.002, right=3, batch=1)
    for _ in range(100):
        if not policy.speculating:
            alone.round()
    assert policy.speculating
    assert Ask.DRAFT not in Machine(policy, wait_s=0.2, right=3, batch=8).rounds(10)


def test_what_is_foreseen_holds_for_a_few_rounds_of_about_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    machine = Machine(policy, wait_s=0.002, right=3, batch=4)
    machine.rounds(40)
    seen: list[int] = []

    def rates(batch: Batch) -> tuple[float, float]:
        seen.append(batch.auto)
        return 1.0, 2.0

    def rounds(*sizes: int, looking: bool = True) -> list[int]:
        """Sizes of the batches for which rates had to be worked out."""
        seen.clear()
        for size in sizes:
            policy.next_ask(dataclasses.replace(machine.batch, auto=size, sequences=size))
            if looking:
                policy.look_ahead()
        return list(seen)

    monkeypatch.setattr(policy, "rates", rates)
    rounds(4, 4, 4, 4)
    assert rounds(*[4] * 12) == [4, 4, 4]  # of each a look ahead
    assert len(rounds(4, 3, 5, 4)) == 1  # sizes of a class share it
    # Another size is not what was foreseen, until the look ahead.
    assert rounds(8, 8, 8) == [8, 8]
    # Without looks ahead it gets old.
    assert len(rounds(*[8] * 8, looking=False)) >= 5


def test_a_look_ahead_has_the_costs_ready_for_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, random = make_policy(), np.random.default_rng(0)
    machine = Machine(policy, wait_s=0.002, right=3, batch=4)
    machine.rounds(40)
    for _ in range(8):
        policy.costs.observe(4, 8, 100.0, STEP_S)
        assert policy.next_ask(machine.batch) is Ask.DRAFT
        policy.look_ahead()
        with monkeypatch.context() as watched:
            watched.setattr(policy.costs, "_curve", lambda *_: pytest.fail("somebody waited for it"))
            trees = [random_tree(random, 10) for _ in range(4)]
            policy.choose(trees, [False] * 4, machine.batch, pinned_nodes=0, waited=True)


def test_a_machine_that_slows_down_is_no_reason_to_speculate() -> None:
    policy = make_policy()
    machine = Machine(policy, wait_s=0.03, right=3)  # four tokens take as long as four plain steps
    machine.rounds(200)
    batch = machine.batch
    plain, speculative = policy.rates(batch)
    before = speculative / plain
    for _ in range(10):
        policy.costs.observe(1, 0, 100.0, 3 * STEP_S)
    assert policy.costs.scale > 1.3
    plain, speculative = policy.rates(batch)
    assert speculative / plain == pytest.approx(before, rel=0.2)


def test_answers_that_came_beside_prompts_are_not_timed_again() -> None:
    policy = make_policy()
    policy.next_ask(Batch(auto=4, sequences=4, context=100.0, sampled=0.0))
    policy.saw_mixed_step(10.0)
    policy.saw_late_answer(4, 0.3, now=10.2)
    assert policy.waits.known == {4: 0.3}  # nothing better is known
    policy.saw_late_answer(4, 0.5, now=10.2)
    assert policy.waits.known == {4: 0.3}
    policy.saw_late_answer(4, 0.5, now=10.6)
    assert policy.waits.known == {4: pytest.approx(0.4)}


@pytest.mark.parametrize(("groups", "known"), [(1, {}), (2, {16: 0.3})])
def test_while_a_load_comes_up_late_answers_say_nothing_of_a_smaller_one(groups: int, known: dict[int, float]) -> None:
    """Nor while it goes away. Half of those who decode now are one of two groups, though."""
    policy = make_policy(groups=groups)
    policy.saw_mixed_step(10.0)
    for index, (asked, auto) in enumerate(((16, 40), (20, 8), (16, 32))):
        policy.next_ask(Batch(auto=auto, sequences=auto, context=100.0, sampled=0.0))
        policy.saw_late_answer(asked, 0.3, now=10.2 + index / 100)
    assert policy.waits.known == known


def test_trees_are_worth_what_is_known_now_not_when_they_came() -> None:
    policy = make_policy()
    policy.speculating = False
    machine = Machine(policy, wait_s=0.002, right=0)
    trees = [random_tree(machine.random, 10) for _ in range(8)]
    for tree in trees:
        policy.saw_tree(tree, sampled=False, asked=1)
    before = policy.profile.tokens(np.array([8.0]), 0.0)
    for tree in trees * 8:
        policy.calibration.observe(tree, [-1], sampled=False)
    assert policy.profile.tokens(np.array([8.0]), 0.0) == before
    machine.rounds(40)  # with a look, after 16
    assert policy.profile.tokens(np.array([8.0]), 0.0) < before / 3
    assert not policy.speculating


def test_of_many_trees_some_are_learned_from_and_weigh_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = [random_tree(np.random.default_rng(number), 10) for number in range(64)]
    numbers = {id(tree): number for number, tree in enumerate(trees)}
    policy = make_policy()
    taught: list[tuple[int, int]] = []
    monkeypatch.setattr(
        policy.profile,
        "observe",
        lambda trees, _, *, asked, **__: taught.extend((numbers[id(tree)], asked) for tree in trees),
    )
    for tree in trees:
        policy.saw_tree(tree, sampled=False, asked=64)
    policy.rates(Batch(auto=64, sequences=64, context=100.0, sampled=0.0))
    assert taught == [(number, 16) for number in range(0, 64, 4)]


def test_chances_that_the_choice_worked_out_teach_too(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, random = make_policy(), np.random.default_rng(0)
    seen, unseen = [random_tree(random, 10) for _ in range(4)], random_tree(random, 10)
    batch = Batch(auto=4, sequences=4, context=100.0, sampled=0.0)
    for tree in (*seen, unseen):
        policy.saw_tree(tree, sampled=False, asked=5)
    policy.choose(seen, [False] * 4, batch, pinned_nodes=0, waited=True)
    scored: list[TokenTree] = []
    taught: list[list[float]] = []
    scores_of = policy.calibration.scores

    def scores(tree: TokenTree, *, sampled: bool) -> list[float]:
        scored.append(tree)
        return scores_of(tree, sampled=sampled)

    monkeypatch.setattr(policy.calibration, "scores", scores)
    monkeypatch.setattr(policy.profile, "observe", lambda _, scores, **__: taught.extend(scores))
    policy.rates(batch)
    assert [id(tree) for tree in scored] == [id(unseen)]
    assert taught == [scores_of(tree, sampled=False) for tree in (*seen, unseen)]


def test_nodes_that_no_step_looks_at_are_not_asked_for() -> None:
    policy, random = make_policy(), np.random.default_rng(0)
    dear = [[[STEP_S * (1 + nodes / 4) for nodes in AXES.nodes] for _ in AXES.sequences] for _ in AXES.context]
    policy.costs = CostTable(AXES, dear)
    batch = Batch(auto=4, sequences=4, context=100.0, sampled=0.0)
    for _ in range(20):
        assert policy.nodes_wanted(4) is None
        policy.choose([random_tree(random, 16) for _ in range(4)], [False] * 4, batch, pinned_nodes=0, waited=True)
        policy.next_ask(batch)
        policy.look_ahead()
        if policy.wishes.nodes(4, 1) is not None:
            break
    wanted = policy.nodes_wanted(4)
    assert wanted is not None
    assert wanted < 16


def test_a_choice_that_takes_longer_than_it_saves_is_made_in_one_round_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, random = make_policy(), np.random.default_rng(0)
    clock = itertools.count()
    monkeypatch.setattr("draftwood_verifier.budget.policy.perf_counter", lambda: float(next(clock)))
    machine = Machine(policy, wait_s=0.002, right=3)
    machine.rounds(20)
    chosen: list[int] = []
    for number in range(21, 21 + 64):
        policy.next_ask(machine.batch)
        wanted = policy.nodes_wanted(1)
        tree = random_tree(random, wanted or 10)
        policy.saw_tree(tree, sampled=False, asked=1)
        before = next(clock)
        (looked_at,), decision = policy.choose([tree], [False], machine.batch, pinned_nodes=0, waited=True)
        policy.look_ahead()
        if next(clock) == before + 1:
            assert looked_at is tree
            assert decision.nodes == len(tree) == wanted == 10
            # As foreseen a few rounds ago.
            assert (decision.plain_rate, decision.rate) == pytest.approx(policy.rates(machine.batch), rel=0.1)
        else:
            chosen.append(number)
    assert chosen == [32, 48, 64, 80]


@pytest.mark.parametrize(("choosing_s", "pays"), [(0.0, True), (1.0, False)])
def test_a_choice_among_dear_nodes_pays_if_it_is_quick(
    monkeypatch: pytest.MonkeyPatch, choosing_s: float, pays: bool
) -> None:
    policy, random = make_policy(), np.random.default_rng(0)
    # Trees differ in what they hold, so no fixed size is as good as the choice.
    policy.costs = CostTable(AXES, [[[STEP_S * (1 + n / 4) for n in AXES.nodes] for _ in AXES.sequences]] * 2)
    clock = itertools.count()
    monkeypatch.setattr("draftwood_verifier.budget.policy.perf_counter", lambda: choosing_s * next(clock))
    batch = Batch(auto=2, sequences=2, context=100.0, sampled=0.0)
    for _ in range(8):
        trees = [random_tree(random, 16) for _ in range(2)]
        policy.choose(trees, [False] * 2, batch, pinned_nodes=0, waited=True)
    policy.rates(batch)
    assert (policy.whole_trees.nodes(2) is None) == pays


def test_only_trees_of_all_nodes_that_requests_allow_tell_what_sizes_would_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, random = make_policy(), np.random.default_rng(0)
    monkeypatch.setattr(policy.wishes, "nodes", lambda _, number: None if number % 4 == 0 else 6)
    seen: list[int] = []
    monkeypatch.setattr(policy.whole_trees, "saw", lambda _, scores, **__: seen.append(len(scores[0])))
    batch = Batch(auto=1, sequences=1, context=100.0, sampled=0.0)
    for _ in range(16):
        policy.next_ask(batch)
        tree = random_tree(random, policy.nodes_wanted(1) or 10)
        policy.choose([tree], [False], batch, pinned_nodes=0, waited=True)
    policy.rates(batch)
    assert seen == [10] * 4


def test_a_tree_larger_than_what_is_looked_at_whole_is_chosen_from() -> None:
    policy, random = make_policy(), np.random.default_rng(0)
    batch = Batch(auto=1, sequences=1, context=100.0, sampled=0.0)
    for _ in range(8):
        policy.whole_trees.saw(1, [[0.9, 0.9]], lambda nodes, _: 1.0 if nodes == 2 else 0.5, 1.0)
    policy.next_ask(batch)
    assert policy.nodes_wanted(1) == 2
    policy.costs = CostTable(AXES, [[[nodes + 1.0 for nodes in AXES.nodes] for _ in AXES.sequences] for _ in range(2)])
    small, large = random_tree(random, 2), random_tree(random, 3)
    assert policy.choose([small], [False], batch, pinned_nodes=0, waited=True)[0] == [small]
    assert len(policy.choose([large], [False], batch, pinned_nodes=0, waited=True)[0][0]) == 0


def test_waits_are_bounded_by_what_is_usual() -> None:
    policy = make_policy()
    assert policy.wait_limit_s(4, 0.2) == 0.2
    policy.waits.observe(4, 0.03)
    assert policy.wait_limit_s(4, 0.2) == pytest.approx(0.12)
    assert policy.wait_limit_s(4, 0.05) == 0.05
    policy.waits.observe(1, 0.001)
    assert policy.wait_limit_s(1, 0.2) == pytest.approx(0.06)


def test_promises_that_were_not_kept_make_it_harder_to_speculate() -> None:
    machine = Machine(make_policy(), wait_s=0.002, right=3)
    machine.rounds(100)
    kept = machine.policy.shortfall(1)
    machine.right = 0
    machine.policy.calibration.observe = lambda *_, **__: None  # type: ignore[method-assign]  # goes on believing
    machine.rounds(40)
    assert kept < 0.1 < machine.policy.shortfall(1)
    assert machine.policy.shortfall(8) < 0.1  # a larger batch is another matter


def test_of_the_late_answers_to_an_ask_the_first_counts() -> None:
    policy = make_policy()
    for index in range(64):
        policy.saw_late_answer(64, 0.3 + 0.001 * index, now=10.0 + 0.001 * index)
    assert policy.waits.known == {64: pytest.approx(0.3)}
    policy.saw_late_answer(64, 0.4, now=11.0)
    assert policy.waits.known[64] == pytest.approx(0.35)


def test_a_wait_that_was_once_long_is_tried_again() -> None:
    """It was timed while the drafter had other work: nobody waits now, so only a trial can tell."""
    machine = Machine(make_policy(), wait_s=0.002, right=3, batch=4)
    machine.rounds(30)
    assert machine.policy.speculating
    machine.policy.saw_late_answer = lambda *_, **__: None  # type: ignore[method-assign]  # probes don't tell
    machine.batch = dataclasses.replace(machine.batch, auto=8, sequences=8)
    machine.policy.waits.observe(8, 0.05)
    machine.rounds(1)
    assert not machine.policy.speculating
    assert machine.rounds(300).count(Ask.DRAFT) > 100


def test_plain_steps_keep_the_plain_side_fresh_where_it_matters() -> None:
    machine = Machine(make_policy(), wait_s=0.02, right=3)
    asks = machine.rounds(1000)
    plain, speculative = machine.policy.rates(machine.batch)
    assert 1.05 < speculative / plain < 1.25
    assert [number for number, ask in enumerate(asks, start=1) if ask is not Ask.DRAFT] == list(range(96, 1000, 96))


def test_a_round_that_was_held_up_does_not_end_speculation() -> None:
    machine = Machine(make_policy(), wait_s=0.0225, right=3)
    machine.rounds(50)
    for _ in range(2):
        machine.policy.waits.observe(1, 0.045)  # and the next ones look as if they would be, too
    plain, speculative = machine.policy.rates(machine.batch)
    assert speculative < plain
    assert set(machine.rounds(40)) == {Ask.DRAFT}


def test_speculation_ends_once_a_part_of_a_round_is_missing() -> None:
    machine = Machine(make_policy(), wait_s=0.021, right=3)
    machine.rounds(50)
    machine.wait_s = 0.035
    rounds = machine.rounds(40).count(Ask.DRAFT)
    assert 5 < rounds < 20
    machine = Machine(make_policy(), wait_s=0.021, right=3)
    machine.rounds(50)
    for _ in range(10):
        machine.policy.waits.observe(1, 0.1)
    assert Ask.DRAFT not in machine.rounds(10)
