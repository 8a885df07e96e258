"""What a drafter would hold, and what it and the verifier would say to each other."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from draftwood.doctor.held import held_bytes
from draftwood.doctor.nowhere import nowhere
from draftwood_checkpoint.draft_config import DraftConfig
from draftwood_checkpoint.headers import CheckpointHeaders
from draftwood_checkpoint.model_config import load_model_config
from draftwood_drafter.config import DrafterConfig
from draftwood_drafter.context_cache import ContextCache
from draftwood_drafter.device_backend import check_supported
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.model import DraftModel
from draftwood_kernels.linear.reference import packs
from draftwood_verifier.config import VerifierConfig
from draftwood_wire.tensor import tensor_to_proto
from draftwood_wire.tree import TokenTree, tree_to_proto
from draftwood_wire.v1 import tensor_pb2, verifier_service_pb2

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Bytes of frames, as they are sent. A commit: of a round that adds one token, and what every further one adds.

    With the head on the verifier, hidden rows of all depths would go up in the place of the tree.
    """

    features_a_token_bytes: int
    commit_bytes: int
    commit_a_further_token_bytes: int
    proposal_bytes: int
    hidden_rows_bytes: int


@dataclass(frozen=True, kw_only=True)
class Draft:
    """borrowed: of the weights, the target's embedding and head. context: of the drafter's default number of pages.
    head: what a drafter without the target's head would not hold."""

    config: DraftConfig
    weights_bytes: int
    borrowed_bytes: int
    head_bytes: int
    context_a_token_bytes: int
    context_bytes: int
    wire: Wire


def examine_draft(target: Path, draft: Path, *, on_cpu: bool) -> Draft:
    """Raises the errors that a load would raise."""
    placement = nowhere(on_cpu=on_cpu)
    with placement.device:
        model = load_draft_model(target, draft, placement=placement, open_checkpoint=CheckpointHeaders)
        weights = held_bytes(model)
        c = model.config
        cache = ContextCache(
            pages=1,
            page_size=1,
            layers=c.num_hidden_layers,
            kv_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            placement=placement,
        )
        a_token = held_bytes(cache) // (cache.pages_total + 1)
    if not on_cpu:
        check_supported(model)
    matrix = model.vocab_size * c.hidden_size * placement.dtype.itemsize
    is_tied = load_model_config(target).tie_word_embeddings
    # Tied, the head is the embedding, unless it is laid out anew for the CPU.
    head = 0 if is_tied and not (on_cpu and packs(torch.zeros(1))) else matrix
    return Draft(
        config=c,
        weights_bytes=weights + (head if is_tied else 0),
        borrowed_bytes=matrix + head,
        head_bytes=head,
        context_a_token_bytes=a_token,
        context_bytes=a_token * (DrafterConfig.context_pages + 1) * DrafterConfig.page_size,
        wire=_wire(model),
    )


def _wire(model: DraftModel) -> Wire:
    one, two = (_commit_bytes(model, tokens) for tokens in (1, 2))
    return Wire(
        features_a_token_bytes=model.feature_width * _FLOAT_BYTES,
        commit_bytes=one,
        commit_a_further_token_bytes=two - one,
        proposal_bytes=_proposal_bytes(model),
        hidden_rows_bytes=(model.config.block_size - 1) * model.config.hidden_size * _FLOAT_BYTES,
    )


def _commit_bytes(model: DraftModel, tokens: int) -> int:
    features = np.zeros((tokens, model.feature_width), np.float32)
    commit = verifier_service_pb2.Commit(
        session_id=1, round=1, base_len=model.context_limit, token_ids=[model.vocab_size - 1] * tokens,
        feature_rows=tokens,
    )  # fmt: skip
    batch = verifier_service_pb2.CommitBatch(
        commits=[commit], features=tensor_to_proto(features, tensor_pb2.DATA_TYPE_FLOAT32)
    )
    return verifier_service_pb2.SpeculateResponse(commits=batch).ByteSize()


def _proposal_bytes(model: DraftModel) -> int:
    """Of a tree of as many nodes as the verifier asks for by default."""
    nodes = VerifierConfig.node_limit
    tree = TokenTree(
        token_ids=np.full(nodes, model.vocab_size - 1, np.int32),
        parents=np.arange(nodes, dtype=np.int32),
        log_probs=-np.arange(1, nodes + 1, dtype=np.float32),
    )
    proposal = verifier_service_pb2.Proposal(session_id=1, base_len=model.context_limit, tree=tree_to_proto(tree))
    batch = verifier_service_pb2.ProposalBatch(proposals=[proposal])
    return verifier_service_pb2.SpeculateRequest(proposals=batch).ByteSize()
