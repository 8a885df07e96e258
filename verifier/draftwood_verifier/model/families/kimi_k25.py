"""The language model inside Kimi-K2.5 and K2.6 checkpoints, which is a Kimi-K2.

Sources: the checkpoints' own naming; transformers' modeling_kimi_k25 for configs.
"""

from dataclasses import replace

from draftwood_checkpoint.fields import Fields
from draftwood_checkpoint.model_config import ModelConfig
from draftwood_verifier.model.families import deepseek_v3
from draftwood_verifier.model.family import Blueprint, Family

_PREFIX = "language_model."
# Images: prompts here are text.
_VISION = ("vision_tower.", "mm_projector.")


def _blueprint(config: ModelConfig, fields: Fields) -> Blueprint:
    text = deepseek_v3.blueprint(config, fields)
    ignored = (*_VISION, *(_PREFIX + name for name in text.ignored))
    return replace(text, prefix=_PREFIX, ignored=ignored)


FAMILY = Family(model_types=("kimi_k25",), blueprint=_blueprint)
