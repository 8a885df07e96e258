"""Figures from arrivals, on cases that can be worked out by hand."""

import pytest

from draftwood.bench.statistics import median_interval, percentile, rate, sign_test


def test_rate_of_a_steady_stream() -> None:
    arrivals = [(0.01 * i, 1) for i in range(1001)]
    assert rate(arrivals, 2.0, 8.0) == pytest.approx(100.0, rel=1e-3)


@pytest.mark.parametrize("phase", [0.0, 0.03, 0.05, 0.089])
def test_rate_of_bursts_does_not_depend_on_their_phase(phase: float) -> None:
    bursts = [(phase + 0.09 * i, 64) for i in range(60)]
    assert rate(bursts, 1.0, 4.0) == pytest.approx(64 / 0.09, rel=5e-3)


def test_what_comes_outside_the_window_does_not_count() -> None:
    assert rate([(0.5, 10), (5.0, 10)], 1.0, 4.0) == 0.0


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50.0, 95.0, 99.0, 100.0]
    assert percentile([], 0.5) is None


def test_the_median_s_interval_is_that_of_the_tables() -> None:
    """Ranks of the usual tables for 95 %: 1 of 6, 2 of 10, 10 of 30, 18 of 50."""
    for count, rank in ((6, 1), (10, 2), (30, 10), (50, 18)):
        values = [float(i) for i in range(count, 0, -1)]
        assert median_interval(values) == (rank, count + 1 - rank)
    with pytest.raises(ValueError, match="5 values"):
        median_interval([1.0] * 5)


def test_sign_test() -> None:
    assert sign_test([-1, -1, -1, -1, -1]) == pytest.approx(1 / 32)
    assert sign_test([1, -1, -1, -1, -1]) == pytest.approx(6 / 32)
    assert sign_test([1, 1, 1, 1, 1]) == 1.0
    assert sign_test([0, 0]) == 1.0
