"""Sizes of what is measured. Nothing here is imported from a checkpoint: weights are random."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """`choices` experts a row; each makes `intermediate` numbers of the hidden ones, and has a gate beside."""

    hidden: int
    intermediate: int
    experts: int
    choices: int


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """`nodes` a session besides its root; 0 is a plain step."""

    batch: int
    context: int
    nodes: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and how large: `dtype` of weights, activations and KV."""

    device: torch.device
    dtype: torch.dtype
    page_size: int


# The sizes of Qwen3's 0.6B and 8B.
MODELS = (
    ModelShape(
        name="0.6B", hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, intermediate=3072, vocab=151936
    ),
    ModelShape(name="8B", hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, intermediate=12288, vocab=151936),
)
STEPS = tuple(
    StepShape(batch=batch, context=context, nodes=nodes)
    for batch in (1, 4, 16, 64)
    for context in (1024, 8192, 32768)
    for nodes in (0, 8, 16, 32, 64)
)
# One kernel at a time: the layer of the large model over this step.
KERNEL_MODEL, KERNEL_STEP = MODELS[1], StepShape(batch=16, context=8192, nodes=32)
# Experts are those of Qwen3-30B-A3B: their layer fits beside everything else.
KERNEL_EXPERTS = ExpertShape(hidden=2048, intermediate=768, experts=128, choices=8)

TINY_MODEL = ModelShape(name="tiny", hidden=32, layers=2, heads=4, kv_heads=2, head_dim=64, intermediate=48, vocab=90)
TINY_EXPERTS = ExpertShape(hidden=32, intermediate=24, experts=5, choices=2)
TINY_STEPS = tuple(StepShape(batch=2, context=21, nodes=nodes) for nodes in (0, 5))
