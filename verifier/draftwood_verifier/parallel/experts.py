"""Experts spread over the ranks of a group.

Hidden states are whole on every rank, so no row has to travel to its experts: every rank routes all rows alike,
computes what its own experts contribute, and the sum that tensor parallelism needs anyway brings the contributions
together. An exchange of rows would pay where ranks have rows of their own.
"""

from draftwood_verifier.parallel.linear import Share


def held_experts(share: Share, count: int) -> range:
    """The experts of a layer that are this rank's; raises UnsupportedConfig when there are fewer than ranks."""
    part = share.part("num_experts", count)
    return range(part.start, part.stop)
