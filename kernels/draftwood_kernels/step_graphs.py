"""Steps as CUDA graphs: what is launched once for a size is replayed from then on, without Python between kernels.

A step that can be captured reads and writes buffers that stay where they are, has the same launches for the same size,
and never waits for the host. Run twice on the same inputs it leaves the same state, for it is warmed up before.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch

Step = Callable[[], object]

_WARM_UPS = 3


class StepGraphs:
    """Graphs by size, all in one memory pool, since no two of them run at once. On a CPU steps just run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    @property
    def captured(self) -> int:
        return len(self._graphs)

    def run(self, size: Hashable, step: Step) -> None:
        """Queue the step of this size; `step` has to be the same work whenever its size is the same.

        What it allocated is overwritten by the next one. Raises RuntimeError, the first time, for a step that waits for
        the host.
        """
        if self._device.type != "cuda":
            step()
            return
        graph = self._graphs.get(size)
        if graph is None:
            graph = self._graphs[size] = capture(step, pool=self._pool)
        graph.replay()


def capture(step: Step, *, pool: Any = None) -> torch.cuda.CUDAGraph:
    """`step`, warmed up, as a graph; not run by it. Raises RuntimeError for what waits for the host."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads may ask the card for something meanwhile: NCCL's watchdog does.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        step()
    return graph
