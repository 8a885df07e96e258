"""Llama 2, 3 and what shares their layer: no norms on queries and keys.

Source: transformers' modeling_llama.
"""

from draftwood_checkpoint.fields import Fields
from draftwood_checkpoint.model_config import ModelConfig
from draftwood_verifier.model.family import Blueprint, Family, grouped_query_blueprint


def _blueprint(config: ModelConfig, _fields: Fields) -> Blueprint:
    return grouped_query_blueprint(config, qk_norm=False)


FAMILY = Family(model_types=("llama",), blueprint=_blueprint)
