"""Inverse frequencies of the rope kinds, with the arithmetic of transformers' modeling_rope_utils in float32."""

import math
from collections.abc import Mapping
from typing import Protocol

import torch


class RopeScaling(Protocol):
    """What a rope needs to know; draftwood_checkpoint's RopeConfig is one."""

    @property
    def theta(self) -> float: ...
    @property
    def kind(self) -> str:
        """default, linear, llama3 or yarn."""

    @property
    def parameters(self) -> Mapping[str, float]:
        """What the kind needs, by the names of config.json."""


def rope_frequencies(rope: RopeScaling, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians a position, float32 [D / 2], and the factor on cos and sin. Raises ValueError for an unknown kind."""
    powers = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "default":
        return 1.0 / powers, 1.0
    if rope.kind == "linear":
        return 1.0 / powers / rope.parameters["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(1.0 / powers, rope.parameters), 1.0
    if rope.kind == "yarn":
        return _yarn(powers, rope, head_dim), _yarn_attention_factor(rope.parameters)
    raise ValueError(f"rope_scaling: kind {rope.kind!r} is not one of default, linear, llama3, yarn")


def _llama3(inverse: torch.Tensor, parameters: Mapping[str, float]) -> torch.Tensor:
    """Long waves are slowed down by the factor, short ones stay, those between are blended."""
    factor, low, high = (parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    waves_in_context = parameters["original_max_position_embeddings"] * inverse / (2 * math.pi)
    blend = ((waves_in_context - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * inverse / factor + blend * inverse


def _yarn(powers: torch.Tensor, rope: RopeScaling, head_dim: int) -> torch.Tensor:
    """Source: YaRN (arXiv 2309.00071): interpolate below beta_slow turns in the context, keep above beta_fast."""
    p = rope.parameters

    def dimension(turns: float) -> float:
        original = p["original_max_position_embeddings"]
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(p.get("beta_fast") or 32), dimension(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return ramp / (p["factor"] * powers) + (1 - ramp) / powers


def _yarn_attention_factor(p: Mapping[str, float]) -> float:
    def scale(weight: float) -> float:
        return 1.0 if p["factor"] <= 1 else 0.1 * weight * math.log(p["factor"]) + 1.0

    if p.get("attention_factor") is not None:
        return p["attention_factor"]
    if p.get("mscale") and p.get("mscale_all_dim"):
        return scale(p["mscale"]) / scale(p["mscale_all_dim"])
    return scale(1.0)
