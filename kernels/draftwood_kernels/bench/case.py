"""One thing to measure, and to check."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Result = torch.Tensor | tuple[torch.Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`run` launches a kernel of the folder `op`; what that reads and writes at least once is `bytes_moved`, its
    products are `operations`.

    `reference` gives what `run` gives, by torch; `rivals` do the same job, by name.
    """

    op: str
    name: str
    run: Callable[[], Result]
    reference: Callable[[], Result]
    bytes_moved: int
    operations: int = 0
    rivals: dict[str, Callable[[], object]] = field(default_factory=dict)


def check(case: Case, rtol: float, atol: float) -> None:
    """Raises AssertionError, naming the case, where kernel and reference differ."""
    ours, expected = case.run(), case.reference()
    pairs = zip(_parts(ours), _parts(expected), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(
            mine, theirs.to(mine.dtype), rtol=rtol, atol=atol, msg=lambda text: f"{case.name}: {text}"
        )


def size_bytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _parts(result: Result) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else result
