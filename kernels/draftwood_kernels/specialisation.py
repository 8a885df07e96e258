"""What is compiled ahead of time of a kernel: one combination of types, constants and launch options.

Each `kernel.py` lists its own at module level: `SPECIALISATIONS: list[Specialisation]`. This file imports nothing.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Specialisation:
    """`kernel` is the @triton.jit function; `name` tells it from the kernel's others, like `bf16 D=128`.

    `signature` has every argument that is no constexpr, in triton's words (`*bf16`, `*i64`, `i32`, `fp32`);
    `constexprs` has every other one.
    """

    kernel: Any
    name: str
    signature: dict[str, str]
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
