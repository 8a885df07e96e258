"""A target checkpoint on disk as a DecoderModel."""

from collections.abc import Callable
from pathlib import Path

import torch

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.model_config import ModelConfig, load_model_config
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rotary import RotaryTable
from draftwood_verifier.model import llama, qwen3
from draftwood_verifier.model.decoder import DecoderModel
from draftwood_verifier.model.weights import DecoderWeights, load_layer

# A family is one file and one line here.
_FAMILIES: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    llama.MODEL_TYPE: llama.adapt,
    qwen3.MODEL_TYPE: qwen3.adapt,
}


def load_model(folder: Path) -> DecoderModel:
    """Raises UnsupportedConfig for families that are not implemented, and the checkpoint's own errors."""
    config = load_model_config(folder)
    if config.model_type not in _FAMILIES:
        raise UnsupportedConfig(
            f"config.json: model_type: {config.model_type!r} is not one of {', '.join(sorted(_FAMILIES))}"
        )
    config = _FAMILIES[config.model_type](config)
    rotary = RotaryTable(config.rope, config.head_dim, config.max_position_embeddings)
    return DecoderModel(config, _weights(Checkpoint(folder), config), rotary)


def _weights(checkpoint: Checkpoint, config: ModelConfig) -> DecoderWeights:
    embedding = checkpoint.load("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
    return DecoderWeights(
        embedding=embedding,
        layers=[load_layer(checkpoint, config, index) for index in range(config.num_hidden_layers)],
        norm=checkpoint.load("model.norm.weight", (config.hidden_size,)),
        head=PackedLinear(_head(checkpoint, config, embedding)),
    )


def _head(checkpoint: Checkpoint, config: ModelConfig, embedding: torch.Tensor) -> torch.Tensor:
    if config.tie_word_embeddings:
        return embedding
    return checkpoint.load("lm_head.weight", (config.vocab_size, config.hidden_size))
