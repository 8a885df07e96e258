"""Batches of about the same size share what was learned of one."""

import math


def size_class(sequences: int) -> int:
    """The power of two that a batch is nearest to, as its exponent; 0 for one sequence or none."""
    return round(math.log2(max(1, sequences)))
