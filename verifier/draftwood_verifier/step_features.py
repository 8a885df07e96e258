"""Features of a step's rows, put together when they are first read; nobody reads those for a drafter left alone."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float32]  # [rows, layers * hidden]


class StepFeatures:
    """Reads once, whatever comes of the runner meanwhile."""

    __slots__ = ("_array", "_read", "row_bytes")

    def __init__(self, read: Callable[[], Features], *, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._read = read
        self._array: Features | None = None

    def read(self) -> Features:
        if self._array is None:
            self._array = self._read()
            self._read = _never  # and let go of the layers
        return self._array


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a step's."""

    features: StepFeatures
    first: int
    count: int

    @property
    def size_bytes(self) -> int:
        return self.count * self.features.row_bytes

    def read(self) -> Features:
        return self.features.read()[self.first : self.first + self.count]


def _never() -> Features:
    raise AssertionError("a step's features are put together once")


def ready(features: Features) -> StepFeatures:
    """Of a runner whose buffers the next step overwrites."""
    return StepFeatures(lambda: features, row_bytes=features.itemsize * features.shape[1])
