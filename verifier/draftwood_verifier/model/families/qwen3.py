"""Qwen3 dense: RMSNorm over each head's queries and keys before the rotation.

Source: transformers' modeling_qwen3.
"""

from draftwood_checkpoint.fields import Fields
from draftwood_checkpoint.model_config import ModelConfig
from draftwood_verifier.model.family import Blueprint, Family, grouped_query_blueprint


def _blueprint(config: ModelConfig, _fields: Fields) -> Blueprint:
    return grouped_query_blueprint(config, qk_norm=True)


FAMILY = Family(model_types=("qwen3",), blueprint=_blueprint)
