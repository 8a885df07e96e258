"""Several ranks in one process: a thread and a real gloo group each, over one store."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import distributed

from draftwood_verifier.parallel.groups import Group

T = TypeVar("T")
# A rank that waits for one that has failed gives up after this.
TIMEOUT = timedelta(seconds=5)


class CountingGroup(Group):
    """Remembers the most numbers that a rank has put into one gather; set it to 0 first."""

    largest = 0

    def gather(self, part: NDArray[np.float64]) -> NDArray[np.float64]:
        CountingGroup.largest = max(CountingGroup.largest, part.size)
        return super().gather(part)


def on_ranks(size: int, act: Callable[[Group], T], *, group_type: type[Group] = Group) -> list[T]:
    """What `act` returns on each rank; raises what it raised on the first rank that failed by itself."""
    store = distributed.HashStore()
    # A group that is dropped closes its connections, which is an error to ranks that are still connecting to others.
    until_all_are_through: list[Group] = []

    def run(rank: int) -> T:
        group = group_type(store, rank, size, timeout=TIMEOUT)
        until_all_are_through.append(group)
        return act(group)

    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for rank in ranks if (error := rank.exception()) is not None]
    for error in sorted(errors, key=lambda error: "Timed out" in str(error)):
        raise error
    return [rank.result() for rank in ranks]
