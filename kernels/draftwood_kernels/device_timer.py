"""How long work takes a GPU by its own clock."""

from functools import cached_property

import torch


class DeviceTimer:
    """Times what is queued on the current stream between `start` and `stop`, by events: nothing waits for them.

    On a CPU it times nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"

    def start(self) -> None:
        if self._is_gpu:
            self._events[0].record()

    def stop(self) -> None:
        if self._is_gpu:
            self._events[1].record()

    @property
    def seconds(self) -> float:
        """Of the last work, which must have been waited for; 0 on a CPU."""
        return self._events[0].elapsed_time(self._events[1]) / 1e3 if self._is_gpu else 0.0

    @cached_property
    def _events(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
