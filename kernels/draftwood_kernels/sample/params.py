"""What a request says about sampling."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 keep everything. seed: any 64-bit unsigned integer."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature: {self.temperature} is not a finite number of at least 0")
        if self.top_k < 0:
            raise ValueError(f"top_k: {self.top_k} is negative")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: {self.top_p} is outside (0, 1]")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p: {self.min_p} is outside 0..1")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed: {self.seed} is not a 64-bit unsigned integer")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Some tokens may be excluded before the draw."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0
