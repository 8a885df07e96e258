"""Joining the group that torchrun, or whoever sets its variables, has started this process for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed.rendezvous import rendezvous

from draftwood_verifier.parallel.groups import Group, GroupLost
from draftwood_verifier.parallel.lifeline import Lifeline

# How long the first rank waits for the last one.
JOIN_TIMEOUT = timedelta(seconds=120)


def is_follower() -> bool:
    """Whether this process serves nobody but rank 0."""
    return _size() > 1 and os.environ.get("RANK") != "0"


def own_device(device: str) -> str:
    """Of `cuda` without a number, this process's card: torchrun numbers the processes of a host."""
    local_rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{local_rank}" if device == "cuda" and local_rank else device


@contextmanager
def joined() -> Iterator[Group | None]:
    """The group of WORLD_SIZE processes in which this is RANK, met at MASTER_ADDR:MASTER_PORT; none of one process.

    Leave it only in order. Raises GroupLost when the others don't come, and ValueError when a variable is missing.
    """
    size = _size()
    if size == 1:
        yield None
        return
    try:
        store, rank, size = next(rendezvous("env://", timeout=JOIN_TIMEOUT))
        lifeline = Lifeline(store, os.environ["MASTER_ADDR"], rank, size, timeout_s=JOIN_TIMEOUT.total_seconds())
        group = Group(lifeline.store, rank, size)
    except (RuntimeError, OSError) as error:
        raise GroupLost(
            f"{size} ranks did not meet at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {error}"
        ) from error
    yield group
    lifeline.leave()


def _size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
