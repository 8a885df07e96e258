"""Times on a GPU: medians of CUDA graph replays, each with a cold L2."""

import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from draftwood_kernels.step_graphs import capture

_REPLAYS = 30
_COPIED_BYTES = 1 << 30
_SQUARE = 8192


@dataclass(frozen=True, kw_only=True)
class Card:
    """bandwidth: bytes a second that a large copy reads and writes; matrix_rate: operations a second of a product."""

    bandwidth: float
    matrix_rate: float


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Of one replay: kernels, and the microseconds between the first one's start and the last one's end without any."""

    kernels: int
    idle_us: float


def environment() -> dict[str, str]:
    """Card, driver, versions and command: what a number means nothing without."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()[0]
    return {
        "card": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python -m draftwood_kernels.bench", *sys.argv[1:]]),
    }


def median_us(graph: torch.cuda.CUDAGraph) -> float:
    cache_bytes: int = torch.cuda.get_device_properties(0).L2_cache_size
    flush = torch.empty(2 * cache_bytes, dtype=torch.uint8, device="cuda")
    pairs = []
    for _ in range(_REPLAYS):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    times_ms: list[float] = [start.elapsed_time(end) for start, end in pairs]
    return statistics.median(times_ms) * 1e3


def gaps(graph: torch.cuda.CUDAGraph) -> Gaps:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        graph.replay()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or []
        if event.device_type.name == "CUDA"
    )
    return Gaps(kernels=len(spans), idle_us=idle_us(spans))


def idle_us(spans: list[tuple[float, float]]) -> float:
    """spans (start, end) by start, in microseconds, which may overlap -> what none of them covers in between."""
    idle, reached = 0.0, spans[0][1] if spans else 0.0
    for start, end in spans[1:]:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle


def measure_card() -> Card:
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    left, right = (torch.randn(_SQUARE, _SQUARE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return Card(
        bandwidth=2 * _COPIED_BYTES / median_us(capture(lambda: target.copy_(source))) * 1e6,
        matrix_rate=2 * _SQUARE**3 / median_us(capture(lambda: left @ right)) * 1e6,
    )
