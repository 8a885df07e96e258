"""The simulated loop, on cases that have a closed form, and what must hold in all of them."""

from dataclasses import replace

import pytest

from draftwood.simulation.acceptance import RoundKind, best_first, chain, mean_expected
from draftwood.simulation.cost import DraftCost, StepCost
from draftwood.simulation.loop import simulate
from draftwood.simulation.policy import allocate, node_budget, simulated_mode
from draftwood.simulation.profile import Profile

KIND = RoundKind(share=1.0, ranks=((0.6, 0.2), (0.5, 0.3), (0.5, 0.1)))


def step(base: float, per_row: float, per_session: float = 0.0) -> StepCost:
    return StepCost(
        rows=(1.0, 101.0),
        context=(0.0,),
        seconds=((base,), (base + 100 * per_row,)),
        session_seconds=(per_session,),
    )


def profile(cost: StepCost, *, draft_s: float = 0.001, kinds: tuple[RoundKind, ...] = (KIND,)) -> Profile:
    return Profile(
        name="test",
        provenance={},
        step=cost,
        draft=DraftCost(sessions=(1.0,), seconds=(draft_s,)),
        round_trip_s=0.002,
        acceptance=kinds,
        prompt_tokens=(1, 1),
        output_tokens=(1000, 1000),
        node_limit=16,
        prefill_chunk=256,
        max_batch=64,
    )


def speed(p: Profile, mode: str, clients: int, seed: int = 0) -> float:
    return simulate(p, simulated_mode(mode, p), clients, seed).tokens_per_s


def test_one_client_without_a_drafter_gets_one_token_a_step() -> None:
    assert speed(profile(step(0.010, 0.0)), "plain", 1) == pytest.approx(1 / 0.010)


def test_plain_clients_share_a_step() -> None:
    cost = step(0.010, 0.001, per_session=0.002)
    # A request that ends is replaced at once, and its prompt of one row takes a place in the next step.
    assert speed(profile(cost), "plain", 8) == pytest.approx(8 / cost.of(8, 0.0, 8), rel=1e-3)


def test_a_drafted_round_is_draft_way_and_step() -> None:
    cost = step(0.010, 0.001)
    p = profile(cost, draft_s=0.005)
    outcome = simulate(p, simulated_mode("tree-4", p), 1)
    assert outcome.accepted_length == pytest.approx(best_first(KIND, 4).expected(4), rel=0.1)
    assert outcome.tokens_per_s == pytest.approx(outcome.accepted_length / (0.005 + 0.002 + cost.of(5, 0, 1)), rel=0.01)


def test_a_tree_is_walked_as_often_as_its_scores_say() -> None:
    tree = best_first(KIND, 6)
    assert tree.scores == pytest.approx((0.6, 0.3, 0.2, 0.18, 0.15, 0.1))
    assert chain(KIND, 3).scores == pytest.approx((0.6, 0.3, 0.15))
    easy = RoundKind(share=3.0, ranks=((1.0,),))
    assert mean_expected((KIND, easy), (tree, best_first(easy, 6)), 1) == pytest.approx((1.6 + 3 * 2.0) / 4)


@pytest.mark.parametrize("mode", ["plain", "tree-8", "auto"])
def test_a_prediction_belongs_to_its_seed(mode: str) -> None:
    p = profile(step(0.010, 0.0005))
    assert speed(p, mode, 4, seed=1) == speed(p, mode, 4, seed=1)


def test_a_dearer_step_is_never_faster() -> None:
    for mode in ("plain", "tree-8"):
        speeds = [speed(profile(step(base, 0.0005)), mode, 8) for base in (0.005, 0.010, 0.020)]
        assert speeds == sorted(speeds, reverse=True)


def test_more_clients_never_get_less_plainly() -> None:
    speeds = [speed(profile(step(0.010, 0.0005)), "plain", clients) for clients in (1, 4, 16, 64)]
    assert speeds == sorted(speeds)


def test_auto_is_plain_where_nodes_cost_more_than_they_bring() -> None:
    p = profile(step(0.001, 0.010))
    outcome = simulate(p, simulated_mode("auto", p), 8)
    assert outcome.plain_steps == 1.0
    assert outcome.tokens_per_s == pytest.approx(speed(p, "plain", 8), rel=0.01)


def test_auto_speculates_where_nodes_are_free() -> None:
    p = profile(step(0.020, 0.0))
    outcome = simulate(p, simulated_mode("auto", p), 8)
    assert outcome.plain_steps == 0.0
    assert outcome.tokens_per_s > 1.5 * speed(p, "plain", 8)


def test_a_long_wait_keeps_auto_plain() -> None:
    p = replace(profile(step(0.010, 0.0)), round_trip_s=0.2)
    assert speed(p, "auto", 4) == pytest.approx(speed(p, "plain", 4), rel=0.01)


def test_the_budget_goes_to_the_best_nodes_of_the_batch() -> None:
    good, bad = (best_first(RoundKind(share=1.0, ranks=((p,),) * 4), 4) for p in (0.9, 0.3))
    assert allocate([bad, good], 3) == [0, 3]
    assert node_budget([bad, good], lambda rows: 1.0 + 0.3 * max(0, rows - 5), 0.0) == 4


@pytest.mark.parametrize("mode", ["tree", "tree-0", "tree-x", "bush"])
def test_a_mode_that_is_none_is_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        simulated_mode(mode, profile(step(0.01, 0.0)))


def test_tables_are_straight_between_points_and_beyond_the_last() -> None:
    cost = StepCost(rows=(1, 3), context=(0, 10), seconds=((1.0, 2.0), (3.0, 6.0)), session_seconds=(0.0, 1.0))
    assert cost.of(2, 5, 0) == pytest.approx(3.0)
    assert cost.of(1, 10, 2) == pytest.approx(4.0)
    assert cost.of(5, 0, 0) == pytest.approx(5.0)
    assert cost.of(0, 0, 0) == pytest.approx(1.0)
