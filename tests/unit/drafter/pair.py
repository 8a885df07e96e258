"""Tiny random pairs: a Qwen3 target and a DFlash draft in the published format, made by the published package."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dflash.model import DFlashDraftModel
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB = 97
MASK = 96
WIDTH = 64
# Three target layers.
FEATURE_WIDTH = 3 * WIDTH


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Folders of a target and a draft checkpoint."""

    target: Path
    draft: Path


def make_pair(
    folder: Path, *, seed: int = 0, tie: bool = True, two_words: bool = False, block_size: int = 8, **draft: Any
) -> Pair:
    """Write a pair under `folder`; `draft` overrides fields of the draft's config.

    With `two_words` the head says token 3 or token 4 by the sign of one feature, so that random chains are right
    about half the time at each depth.
    """
    torch.manual_seed(seed)
    shared = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        # Wide enough that random logits differ clearly and a chain is sometimes right.
        "initializer_range": 0.15,
        "dtype": "float32",
    }
    target_config = Qwen3Config(**shared, num_hidden_layers=4, tie_word_embeddings=tie, bos_token_id=1, eos_token_id=2)
    target = Qwen3ForCausalLM(target_config)
    if two_words:
        with torch.no_grad():
            target.lm_head.weight[3] *= 30
            target.lm_head.weight[4] = -target.lm_head.weight[3]
    target.save_pretrained(folder / "target")
    fields = {
        "num_hidden_layers": 2,
        "num_target_layers": 4,
        "block_size": block_size,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1, 2]},
        "tie_word_embeddings": True,
        **draft,
    }
    model = DFlashDraftModel(Qwen3Config(**{**shared, **fields}))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder / "draft")
    return Pair(target=folder / "target", draft=folder / "draft")
