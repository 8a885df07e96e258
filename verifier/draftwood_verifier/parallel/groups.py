"""The ranks that run one target together, and all that they ever say to each other.

Sums of hidden states go over NCCL when they lie on a GPU; all else is small, on the host, and goes over gloo.
Timeouts are for ranks that hang. A death is noticed by the lifeline, at once: followers may wait for the next message
of rank 0 for as long as nobody asks for anything.
"""

from datetime import timedelta
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, ReduceOp, Store

# Longer than any rank should be behind the others within one step.
STEP_TIMEOUT = timedelta(seconds=60)
_UNTIL_ASKED = timedelta(days=365)


class GroupLost(RuntimeError):
    """The ranks can't go on together: this process has to end."""


class Ranks(Protocol):
    """What it takes to decide over rows of which every rank has its own tokens."""

    @property
    def rank(self) -> int: ...
    @property
    def leads(self) -> bool: ...
    def gather(self, part: NDArray[np.float64]) -> NDArray[np.float64]: ...


class Alone:
    """One rank that has everything."""

    rank = 0
    leads = True

    def gather(self, part: NDArray[np.float64]) -> NDArray[np.float64]:
        return part[np.newaxis]


class Group:
    """Rank `rank` of `size`. Every method is called by all ranks, in the same order; it raises RuntimeError when a
    rank is gone or behind by more than `timeout`."""

    def __init__(self, store: Store, rank: int, size: int, *, timeout: timedelta = STEP_TIMEOUT) -> None:
        """Return when all ranks are there."""
        self.rank = rank
        self.size = size
        self._store = store
        self._timeout = timeout
        # Objects rather than torch's process-wide groups; the stubs lack their methods.
        self._ranks: Any = ProcessGroupGloo(store, rank, size, timeout)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place and the same bits everywhere."""
        ranks = self._gpus if partial.is_cuda else self._ranks
        ranks.allreduce([partial]).wait()
        return partial

    def gather(self, part: NDArray[np.float64]) -> NDArray[np.float64]:
        """`part` [...], of one shape on all ranks -> [size, ...] on every rank."""
        parts = np.empty((self.size, *part.shape))
        self._ranks.allgather([list(torch.from_numpy(parts).unbind())], [torch.from_numpy(part)]).wait()
        return parts

    def broadcast(self, message: NDArray[np.int32]) -> None:
        """Fill `message`, of one length on all ranks, with what it holds on rank 0; may wait for ever."""
        self._ranks.broadcast(torch.from_numpy(message), 0, _UNTIL_ASKED).wait()

    def meet(self) -> None:
        """Return when all ranks are here; may wait for ever."""
        self._ranks.allreduce(torch.zeros(1), ReduceOp.SUM, _UNTIL_ASKED).wait()

    @cached_property
    def _gpus(self) -> Any:
        nccl: Any = distributed_c10d.ProcessGroupNCCL  # builds for CPUs lack it
        return nccl(PrefixStore("gpus", self._store), self.rank, self.size, self._timeout)
