"""Llama 2, 3 and what shares their layer: no norms on queries and keys.

Source: transformers' modeling_llama.
"""

from dataclasses import replace

from draftwood_checkpoint.model_config import ModelConfig

MODEL_TYPE = "llama"


def adapt(config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm=False)
