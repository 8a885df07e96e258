"""Batches share a class with those that are nearest to the same power of two."""

import pytest

from draftwood_verifier.budget.size_class import size_class


@pytest.mark.parametrize(
    ("sequences", "exponent"), [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (6, 3), (11, 3), (12, 4), (64, 6)]
)
def test_size_class(sequences: int, exponent: int) -> None:
    assert size_class(sequences) == exponent
