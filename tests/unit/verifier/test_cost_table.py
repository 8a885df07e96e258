"""The table reads what it was given, moves towards what it sees, and stays calm when the machine does not."""

import itertools

import numpy as np
import pytest

from draftwood_verifier.budget.cost_table import Axes, CostTable, batch_axis

AXES = Axes(sequences=(1, 2, 4, 8), nodes=(0, 4, 16, 64), context=(0, 100))


def linear(sequences: float, nodes: float, context: float) -> float:
    return 1e-3 + 2e-4 * sequences + 3e-5 * nodes + 1e-5 * context


def linear_table() -> CostTable:
    return CostTable(AXES, [[[linear(s, n, c) for n in AXES.nodes] for s in AXES.sequences] for c in AXES.context])


@pytest.mark.parametrize(
    ("sequences", "nodes", "context"), list(itertools.product((1, 3, 8, 12), (0, 1, 10, 64, 200), (0, 40, 250)))
)
def test_a_linear_machine_is_read_exactly_inside_and_beyond_the_grid(
    sequences: int, nodes: int, context: float
) -> None:
    table = linear_table()
    assert table.cost(sequences, nodes, context) == pytest.approx(linear(sequences, nodes, context))
    curve = table.curve(sequences, context)
    assert curve == pytest.approx([linear(sequences, n, context) for n in AXES.nodes])


def test_a_curve_is_worked_out_once_between_two_steps() -> None:
    table = linear_table()
    first = table.curve(2, 10)
    assert table.curve(2, 20) is first
    assert table.curve(2, 90)[0] > first[0]
    assert table.curve(3, 10)[0] > first[0]
    table.observe(2, 0, 10, 2 * first[0])
    assert table.curve(2, 10)[0] > first[0]


def test_one_line_of_context_means_that_it_does_not_matter() -> None:
    axes = Axes(sequences=(1, 2), nodes=(0, 4), context=(32,))
    table = CostTable(axes, [[[1.0, 2.0], [3.0, 4.0]]])
    assert table.cost(1, 2, 0) == table.cost(1, 2, 4096) == pytest.approx(1.5)
    table.observe(2, 0, 999, 2.0)
    assert table.seconds[0][1][0] < 3.0


def test_steps_that_take_longer_are_believed_after_a_while() -> None:
    table = linear_table()
    for _ in range(60):
        table.observe(2, 8, 50, 3 * linear(2, 8, 50))
    assert table.cost(2, 8, 50) == pytest.approx(3 * linear(2, 8, 50), rel=0.02)


def test_a_machine_that_slows_down_slows_down_for_what_was_not_run_too() -> None:
    table = linear_table()
    for nodes in (0, 16) * 30:
        table.observe(2, nodes, 0, linear(2, nodes, 0))
    before = table.curve(2, 0)
    for _ in range(60):
        table.observe(2, 16, 0, 2 * linear(2, 16, 0))
    after = table.curve(2, 0)
    assert after[0] / before[0] == pytest.approx(1.7, abs=0.2)  # most of it is taken to be the machine's doing
    assert after[2] == pytest.approx(2 * linear(2, 16, 0), rel=0.02)


def test_a_point_that_is_seldom_run_learns_for_itself() -> None:
    table = linear_table()
    for _ in range(100):
        table.observe(2, 16, 0, linear(2, 16, 0))
    for _ in range(12):
        for _ in range(10):
            table.observe(2, 16, 0, linear(2, 16, 0))
        table.observe(2, 0, 0, 1.4 * linear(2, 0, 0))
    assert table.cost(2, 0, 0) == pytest.approx(1.4 * linear(2, 0, 0), rel=0.15)
    assert table.cost(2, 16, 0) == pytest.approx(linear(2, 16, 0), rel=0.05)


def test_noise_hardly_moves_what_neighbours_cost_against_each_other() -> None:
    """Spells in which the machine is slower, and noise of each step: 20 % each."""
    random = np.random.default_rng(0)
    table = linear_table()
    shares = []
    for step in range(1_000):
        nodes = (4, 16, 40)[step // 30 % 3]
        slower = 1.2 if step // 70 % 2 else 1.0
        table.observe(2, nodes, 50, slower * linear(2, nodes, 50) * float(random.lognormal(0, 0.2)))
        curve = table.curve(2, 50)
        shares.append(curve[1] / curve[2])
    true = linear(2, 4, 50) / linear(2, 16, 50)
    assert np.mean(shares) == pytest.approx(true, rel=0.06)
    assert np.std(shares) < 0.03


def test_a_curve_bends_as_a_whole_and_the_plain_step_is_apart() -> None:
    axes = Axes(sequences=(1,), nodes=(0, 1, 2, 3, 4, 5, 6, 7, 8), context=(0,))
    table = CostTable(axes, [[[1.0] * 9]])
    table.observe(1, 4, 0, 1.2)
    learned = [value - 1.0 for value in table.seconds[0][0]]
    assert learned[4] == pytest.approx(0.2 / 10)
    shares = [value / learned[4] for value in learned]
    assert shares == pytest.approx([0.8**9, 0.8**3, 0.8**2, 0.8, 1.0, 0.8, 0.8**2, 0.8**3, 0.8**4])


def test_plain_steps_say_little_about_trees() -> None:
    axes = Axes(sequences=(1,), nodes=(0, 1, 2), context=(0,))
    table = CostTable(axes, [[[1.0] * 3]])
    table.observe(1, 0, 0, 1.2)
    plain, *trees = [value - 1.0 for value in table.seconds[0][0]]
    assert plain == pytest.approx(0.2 / 10)
    assert trees == pytest.approx([0.8**6 * plain, 0.8**7 * plain])


def test_sizes_that_are_never_run_keep_their_place_between_those_that_are() -> None:
    """What was measured, 40 nodes among it, is run in noise at 16 and at 64 nodes alone."""
    random = np.random.default_rng(0)
    axes = Axes(sequences=(8,), nodes=(0, 8, 16, 24, 32, 40, 48, 64), context=(0,))
    table = CostTable(axes, [[[linear(8, n, 0) for n in axes.nodes]]])
    for step in range(2_000):
        nodes = (16, 64)[step // 40 % 2]
        slower = 1.2 if step // 70 % 2 else 1.0
        table.observe(8, nodes, 0, slower * linear(8, nodes, 0) * float(random.lognormal(0, 0.2)))
        curve = table.curve(8, 0)
        assert (curve[5] - curve[2]) / (curve[7] - curve[2]) == pytest.approx(0.5, abs=0.1)


def test_one_hiccup_moves_little() -> None:
    table = linear_table()
    for _ in range(20):
        table.observe(2, 8, 50, linear(2, 8, 50))
    table.observe(2, 8, 50, 100 * linear(2, 8, 50))
    assert table.cost(2, 8, 50) < 1.15 * linear(2, 8, 50)


def test_a_slow_spell_of_plain_steps_does_not_make_drafts_look_cheap() -> None:
    table = linear_table()
    for nodes in (0, 64) * 30:
        table.observe(2, nodes, 0, linear(2, nodes, 0))
    for _ in range(60):
        table.observe(2, 0, 0, 10 * linear(2, 0, 0))
    curve = table.curve(2, 0)
    assert curve == sorted(curve)
    assert curve[0] < curve[-1]


def test_what_was_run_weighs_more_than_what_was_only_measured_once() -> None:
    axes = Axes(sequences=(1,), nodes=(0, 4, 16), context=(0,))
    table = CostTable(axes, [[[0.010, 0.011, 0.030]]])
    for _ in range(200):
        table.observe(1, 0, 0, 0.02)
        table.observe(1, 16, 0, 0.03)
    curve = table.curve(1, 0)
    # Four nodes were never run and seem cheaper than none; they can't be.
    assert curve == [pytest.approx(0.02, rel=0.05), pytest.approx(0.02, rel=0.05), pytest.approx(0.03, rel=0.05)]
    assert table.settled()[0][0] == pytest.approx([value / table.scale for value in curve])


def test_a_table_that_was_measured_in_bad_company_recovers_within_a_few_rounds() -> None:
    table = CostTable(AXES, [[[10 * s for s in line] for line in plane] for plane in linear_table().seconds])
    for _ in range(20):
        table.observe(2, 8, 50, linear(2, 8, 50))
    assert table.cost(2, 8, 50) < 1.2 * linear(2, 8, 50)
    assert table.curve(2, 50)[0] < 1.2 * linear(2, 8, 50)


def test_one_point_that_was_measured_in_peace_puts_dearer_smaller_ones_right() -> None:
    seconds = linear_table().seconds
    for line in seconds[0]:
        line[1] = 1.0
    assert CostTable(AXES, seconds).curve(2, 0)[1] == pytest.approx(linear(2, 16, 0))


def test_nothing_ever_becomes_free() -> None:
    table = linear_table()
    for _ in range(500):
        table.observe(12, 200, 250, 0.0)
    assert table.cost(12, 200, 250) > 0
    assert all(value > 0 for plane in table.seconds for line in plane for value in line)


@pytest.mark.parametrize(
    ("most", "axis"), [(1, (1,)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 64))]
)
def test_batch_axis(most: int, axis: tuple[int, ...]) -> None:
    assert batch_axis(most) == axis
