"""What each rank of a verifier would hold of a target."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import torch

from draftwood.doctor.held import held_bytes
from draftwood.doctor.nowhere import nowhere
from draftwood_checkpoint.errors import UnsupportedConfig, UnsupportedTensor
from draftwood_checkpoint.headers import CheckpointHeaders
from draftwood_checkpoint.model_config import ModelConfig, load_text_fields
from draftwood_checkpoint.quantization import Quantization, quantization
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.linear.reference import packs
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.config import VerifierConfig
from draftwood_verifier.model.decoder import DecoderModel
from draftwood_verifier.model.loading import load_blueprint, load_model
from draftwood_verifier.parallel.linear import Share, length

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """weights: with the tables of the rotary embedding. step: what the largest step of the verifier's defaults keeps
    beside pages: its rows' keys, logits, and on a CPU one session's keys gathered. kv_a_token: in all layers."""

    weights_bytes: int
    kv_a_token_bytes: int
    step_bytes: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """refused_ranks: numbers of ranks that it can't be split over, up to the number asked for, and why."""

    config: ModelConfig
    quantization: str
    stored_bytes: int
    ranks: tuple[RankMemory, ...]
    refused_ranks: dict[int, str]


def examine_target(folder: Path, *, most_ranks: int, on_cpu: bool) -> Target:
    """The target on the most ranks that it can be split over. Raises the errors that a load would raise."""
    blueprint = load_blueprint(folder)
    checkpoint = CheckpointHeaders(folder)
    refused: dict[int, str] = {}
    for count in range(most_ranks, 0, -1):
        try:
            ranks = tuple(
                _rank_memory(folder, checkpoint, Share.planned(rank, count), on_cpu=on_cpu) for rank in range(count)
            )
        except (UnsupportedConfig, UnsupportedTensor) as error:
            if count == 1:
                raise
            refused[count] = str(error)
        else:
            break
    return Target(
        config=blueprint.config,
        quantization=_described(quantization(load_text_fields(folder))),
        stored_bytes=sum(checkpoint.stored_bytes(name) for name in checkpoint.names()),
        ranks=ranks,
        refused_ranks=refused,
    )


def _rank_memory(folder: Path, checkpoint: Checkpoint, share: Share, *, on_cpu: bool) -> RankMemory:
    placement = nowhere(on_cpu=on_cpu)
    # Tables are made on the device of the weights, and there is no load whose progress could be shown.
    with torch.device("meta"), contextlib.redirect_stderr(io.StringIO()):
        model = load_model(folder, share, placement=placement, open_checkpoint=lambda _: checkpoint)
        pool = KVPool(
            layers=model.config.num_hidden_layers, pages=1, page_size=1, row=model.cache_row, placement=placement
        )
        weights = held_bytes(model)
        step = _step_bytes(model, pool, on_cpu=on_cpu)
    if on_cpu and model.config.tie_word_embeddings and packs(torch.zeros(1)):
        weights += length(model.vocabulary) * model.config.hidden_size * _FLOAT_BYTES
    return RankMemory(weights_bytes=weights, kv_a_token_bytes=pool.bytes_a_token, step_bytes=step)


def largest_step_rows() -> int:
    """With the verifier's defaults: a full batch with full trees, and a chunk of a prompt."""
    return VerifierConfig.max_batch * (1 + VerifierConfig.node_limit) + VerifierConfig.prefill_chunk


def _step_bytes(model: DecoderModel, pool: KVPool, *, on_cpu: bool) -> int:
    rows = largest_step_rows()
    kept = [pool.scratch(rows), torch.empty(rows, length(model.vocabulary), dtype=pool.placement.dtype)]
    # The GPUs' kernels read keys where they lie.
    return held_bytes([*kept, pool.workspace(model.config.max_position_embeddings)] if on_cpu else kept)


def _described(scheme: Quantization) -> str:
    if scheme.fp8_block:
        return "fp8, blocks of {} x {}".format(*scheme.fp8_block)
    if scheme.int4_group:
        return f"int4, groups of {scheme.int4_group}"
    return "mxfp4 experts" if scheme.is_mxfp4 else "none"
