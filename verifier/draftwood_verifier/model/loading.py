"""A target checkpoint on disk as a DecoderModel, layer by layer."""

from collections.abc import Callable
from pathlib import Path

from draftwood_checkpoint.model_config import load_model_config, load_text_fields
from draftwood_checkpoint.quantization import quantization
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.placement import CPU, Placement
from draftwood_kernels.rotary import RotaryTable
from draftwood_verifier.model.decoder import DecoderModel, DecoderWeights
from draftwood_verifier.model.families import family_of
from draftwood_verifier.model.family import Blueprint
from draftwood_verifier.model.freed_memory import return_freed_memory
from draftwood_verifier.model.progress import shown
from draftwood_verifier.model.weights import Linear, Part, WeightReader
from draftwood_verifier.parallel.linear import ALONE, Share, length


def load_blueprint(folder: Path) -> Blueprint:
    """Reads config.json alone. Raises UnsupportedConfig for what is not implemented."""
    config = load_model_config(folder)
    return family_of(config.model_type).blueprint(config, load_text_fields(folder))


def load_model(
    folder: Path,
    share: Share = ALONE,
    *,
    placement: Placement = CPU,
    open_checkpoint: Callable[[Path], Checkpoint] = Checkpoint,
) -> DecoderModel:
    """This rank's share of a model, layer by layer from the checkpoint to where it is placed.

    Raises UnsupportedConfig for families and splits that are not implemented, and the checkpoint's own errors.
    """
    blueprint = load_blueprint(folder)
    reader = WeightReader(open_checkpoint(folder), quantization(load_text_fields(folder)), share, placement)
    weights = _weights(reader.under(blueprint.prefix), blueprint)
    config = blueprint.config
    tied_head = (f"{blueprint.prefix}lm_head.",) if config.tie_word_embeddings else ()
    reader.check_all_asked([*blueprint.ignored, *tied_head])
    rotary = RotaryTable(config.rope, blueprint.rotary_dim, config.max_position_embeddings, placement.device)
    return DecoderModel(config, weights, rotary, _cache_row(blueprint, share), share.vocabulary(config.vocab_size))


def _cache_row(blueprint: Blueprint, share: Share) -> tuple[int, int]:
    heads, size = blueprint.cache_row
    return heads // blueprint.kv_heads * length(share.kv_heads(blueprint.kv_heads)), size


def _weights(reader: WeightReader, blueprint: Blueprint) -> DecoderWeights:
    c = blueprint.config
    vocabulary = reader.share.vocabulary(c.vocab_size)
    embedding = reader.tensor("model.embed_tokens.weight", c.vocab_size, c.hidden_size, rows=vocabulary)
    layers = []
    for index in shown(c.num_hidden_layers, "loading layers"):
        layers.append(blueprint.load_layer(reader.under(f"model.layers.{index}."), index))
        return_freed_memory()
    norm = reader.tensor("model.norm.weight", c.hidden_size)
    if c.tie_word_embeddings:
        head: Linear = PackedLinear(embedding, row_invariant=reader.placement.row_invariant)
    else:
        head = reader.linear([Part(name="lm_head", rows=c.vocab_size, held=vocabulary)], c.hidden_size)
    lookup = reader.share.embedding(embedding, vocabulary.start)
    return DecoderWeights(embedding=lookup, layers=layers, norm=norm, head=head)
