"""Qwen3 dense: RMSNorm over each head's queries and keys before the rotation.

Source: transformers' modeling_qwen3.
"""

from dataclasses import replace

from draftwood_checkpoint.model_config import ModelConfig

MODEL_TYPE = "qwen3"


def adapt(config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm=True)
