import numpy as np
import pytest

from draftwood_drafter.coverage import Coverage


def test_two_ranges_grow_together() -> None:
    coverage = Coverage()
    coverage.add(5, 8)
    coverage.add(0, 2)
    assert coverage.missing(0, 10) == [(2, 5), (8, 10)]
    assert not coverage.is_exactly(8)
    coverage.add(2, 5)
    assert coverage.is_exactly(8)
    assert coverage.missing(3, 8) == []


def test_nothing_is_exactly_nothing() -> None:
    coverage = Coverage()
    assert coverage.is_exactly(0)
    coverage.add(3, 3)
    assert coverage.is_exactly(0)


@pytest.mark.parametrize("seed", range(20))
def test_random_ranges_equal_a_set(seed: int) -> None:
    rng = np.random.default_rng(seed)
    coverage, held = Coverage(), set()
    for _ in range(30):
        start = int(rng.integers(0, 40))
        stop = start + int(rng.integers(0, 8))
        gaps = [position for gap in coverage.missing(start, stop) for position in range(*gap)]
        assert gaps == sorted(set(range(start, stop)) - held)
        coverage.add(start, stop)
        held |= set(range(start, stop))
        length = len(held)
        assert coverage.is_exactly(length) == (held == set(range(length)))
