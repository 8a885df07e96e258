"""Waits by batch size: means of the first samples, then an average that forgets and does not believe hiccups."""

import pytest

from draftwood_verifier.budget.gaps import GapTable


def test_unknown_sizes_are_guessed_hopefully() -> None:
    gaps = GapTable({4: 0.01, 16: 0.03})
    assert gaps.seconds(10) == pytest.approx(0.02)
    assert gaps.seconds(64) == 0.03
    assert gaps.seconds(1) == 0.01
    assert (gaps.knows(16), gaps.knows(15), gaps.knows(64)) == (True, True, False)
    assert GapTable().seconds(3) < 0.005


def test_a_smaller_batch_is_never_the_slower_one() -> None:
    gaps = GapTable({1: 0.09, 4: 0.02, 16: 0.03})
    assert [gaps.seconds(batch) for batch in (1, 2, 3, 4, 10)] == [0.02, 0.02, 0.02, 0.02, pytest.approx(0.025)]
    assert GapTable({4: 0.05, 8: 0.01}).seconds(1) == 0.01


def test_first_samples_are_averaged() -> None:
    gaps = GapTable()
    for sample in (0.1, 0.2, 0.3):
        gaps.observe(8, sample)
    assert gaps.seconds(8) == pytest.approx(0.2)


def test_a_hiccup_counts_twice_at_most_and_a_slower_drafter_is_believed() -> None:
    gaps = GapTable({8: 0.01})
    gaps.observe(8, 10.0)
    assert gaps.seconds(8) == pytest.approx(0.012)
    for _ in range(40):
        gaps.observe(8, 0.2)
    assert gaps.seconds(8) == pytest.approx(0.2, rel=0.01)


def test_bounds_from_outside_only_lower() -> None:
    gaps = GapTable({8: 0.1})
    gaps.lower(8, 0.5)
    assert gaps.seconds(8) == 0.1
    gaps.lower(8, 0.02)
    assert gaps.seconds(8) == 0.02
    gaps.lower(2, 0.3)
    assert gaps.known == {8: 0.02, 2: 0.3}
    gaps.lower(2, 0.15)
    assert gaps.known[8] == pytest.approx(0.01)  # what is twice as quick for two is so for eight
    late = GapTable({8: 0.2})
    late.lower(2, 0.001)
    assert late.seconds(8) == pytest.approx(0.008)  # four times the sequences, at most eight times as long


def test_what_is_far_too_long_is_soon_forgotten() -> None:
    """It was timed under other conditions; a little shorter is only noise."""
    far, near = GapTable(), GapTable()
    for _ in range(10):
        far.observe(8, 0.06)
        near.observe(8, 0.012)
    for _ in range(3):
        far.observe(8, 0.01)
        near.observe(8, 0.01)
    assert far.seconds(8) < 0.02
    assert near.seconds(8) == pytest.approx(0.01 + 0.002 * 0.8**3)
