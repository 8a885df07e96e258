"""DrafterService: what this drafter is, and one tree for one context, for inspection and tests."""

import math
from importlib.metadata import version
from typing import Any

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.frame_handler import draft_params
from draftwood_drafter.session import DraftParams, FeatureRows, SessionFault, Shape
from draftwood_drafter.speculation_client import SpeculationClient
from draftwood_wire.errors import (
    DraftwoodError,
    Incompatible,
    InvalidRequest,
    MalformedTensor,
    Overloaded,
    status_of,
)
from draftwood_wire.tensor import tensor_from_proto
from draftwood_wire.tree import EMPTY_TREE, TokenTree, tree_to_proto
from draftwood_wire.v1 import drafter_service_pb2
from draftwood_wire.v1.drafter_service_pb2_grpc import DrafterServiceServicer

Context = grpc.aio.ServicerContext[Any, Any]

# Ids on the wire are unsigned, so this one can never be a verifier's.
_INSPECTION_SESSION = -1


class DrafterServicer(DrafterServiceServicer):
    """Shares the engine, and so the pages, with the stream to the verifier; both run in one event loop."""

    def __init__(self, engine: DraftEngine, client: SpeculationClient, *, drafter_id: str, node_limit: int) -> None:
        self._engine = engine
        self._client = client
        self._drafter_id = drafter_id
        self._node_limit = node_limit

    async def GetInfo(  # noqa: N802
        self,
        request: drafter_service_pb2.DrafterServiceGetInfoRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> drafter_service_pb2.DrafterServiceGetInfoResponse:
        model, cache = self._engine.model, self._engine.cache
        return drafter_service_pb2.DrafterServiceGetInfoResponse(
            drafter_id=self._drafter_id,
            version=version("draftwood"),
            vocab_size=model.vocab_size,
            block_size=model.config.block_size,
            target_layer_ids=model.config.target_layer_ids,
            hidden_size=model.config.hidden_size,
            max_node_limit=self._node_limit,
            connected=self._client.connected,
            sessions=self._engine.session_count,
            context_pages_total=cache.pages_total,
            context_pages_free=cache.pages_free,
        )

    async def Draft(  # noqa: N802
        self,
        request: drafter_service_pb2.DraftRequest,
        context: Context,
    ) -> drafter_service_pb2.DraftResponse:
        try:
            tree = self._draft(request)
        except DraftwoodError as error:
            await context.abort(status_of(error), str(error))
        return drafter_service_pb2.DraftResponse(tree=tree_to_proto(tree))

    def _draft(self, request: drafter_service_pb2.DraftRequest) -> TokenTree:
        if not self._engine.model.has_head:
            raise Incompatible("this drafter runs with --head verifier: it has no head to make a tree with")
        tokens = list(request.token_ids)
        params = self._params(request)
        features = self._features(request, len(tokens))
        if params.shape is Shape.OFF:
            return EMPTY_TREE
        try:
            return draft_once(self._engine, tokens, features, params)
        except SessionFault as fault:
            raise InvalidRequest(fault.reason) from fault

    def _params(self, request: drafter_service_pb2.DraftRequest) -> DraftParams:
        limit = request.speculation.node_limit
        if request.HasField("speculation") and not 1 <= limit <= self._node_limit:
            raise InvalidRequest(f"speculation.node_limit: {limit}, must be 1 to {self._node_limit}")
        temperature = request.sampling.temperature
        if not (math.isfinite(temperature) and temperature >= 0):
            raise InvalidRequest(f"sampling.temperature: {temperature}, must be finite and at least 0")
        return draft_params(request.sampling, request.speculation, self._node_limit)

    def _features(self, request: drafter_service_pb2.DraftRequest, length: int) -> NDArray[np.float32]:
        width = self._engine.model.feature_width
        if length == 0:
            raise InvalidRequest("token_ids: empty")
        if length == 1 and not request.HasField("features"):
            return np.zeros((0, width), np.float32)
        try:
            features = tensor_from_proto(request.features)
        except MalformedTensor as error:
            raise InvalidRequest(f"features: {error}") from error
        if features.shape != (length - 1, width):
            raise InvalidRequest(f"features: shape {features.shape}, must be {(length - 1, width)}")
        return features


def draft_once(engine: DraftEngine, tokens: list[int], features: NDArray[np.float32], params: DraftParams) -> TokenTree:
    """A tree for one context that leaves no trace; features float32 [len(tokens) - 1, layers * hidden].

    Empty when the model has no head.
    Raises SessionFault on input that can't be drafted from and Overloaded when the pages are taken.
    """
    try:
        engine.open(_INSPECTION_SESSION, tokens, params, decoding=True)
        faults = engine.append([FeatureRows(session_id=_INSPECTION_SESSION, start=0, features=features)])
        session = engine.session(_INSPECTION_SESSION)
        drafts, faults = ([], faults) if session is None else engine.draft([session])
        if faults and faults[0].out_of_pages:
            raise Overloaded(faults[0].reason)
        if faults:
            raise faults[0]
        return drafts[0].tree
    finally:
        engine.close(_INSPECTION_SESSION)
