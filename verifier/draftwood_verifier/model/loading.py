"""A target checkpoint on disk as a DecoderModel."""

from collections.abc import Callable
from pathlib import Path

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.model_config import ModelConfig, load_model_config
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rotary import RotaryTable
from draftwood_verifier.model import llama, qwen3
from draftwood_verifier.model.decoder import DecoderModel
from draftwood_verifier.model.weights import DecoderWeights, load_layer
from draftwood_verifier.parallel.groups import Group
from draftwood_verifier.parallel.linear import Share, share_of

# A family is one file and one line here.
_FAMILIES: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    llama.MODEL_TYPE: llama.adapt,
    qwen3.MODEL_TYPE: qwen3.adapt,
}


def load_model(folder: Path, group: Group | None = None) -> DecoderModel:
    """The whole model, or this rank's share of it.

    Raises UnsupportedConfig for families and splits that are not implemented, and the checkpoint's own errors.
    """
    config = load_model_config(folder)
    if config.model_type not in _FAMILIES:
        raise UnsupportedConfig(
            f"config.json: model_type: {config.model_type!r} is not one of {', '.join(sorted(_FAMILIES))}"
        )
    config = _FAMILIES[config.model_type](config)
    rotary = RotaryTable(config.rope, config.head_dim, config.max_position_embeddings)
    share = share_of(config, group)
    return DecoderModel(share.local(config), _weights(Checkpoint(folder), config, share), rotary, share.vocabulary)


def _weights(checkpoint: Checkpoint, config: ModelConfig, share: Share) -> DecoderWeights:
    table = (config.vocab_size, config.hidden_size)
    embedding = checkpoint.load("model.embed_tokens.weight", table, rows=share.vocabulary)
    head = embedding
    if not config.tie_word_embeddings:
        head = checkpoint.load("lm_head.weight", table, rows=share.vocabulary)
    return DecoderWeights(
        embedding=share.embedding(embedding),
        layers=[load_layer(checkpoint, config, share, index) for index in range(config.num_hidden_layers)],
        norm=checkpoint.load("model.norm.weight", (config.hidden_size,)),
        head=PackedLinear(head),
    )
