"""What a run of frames from the verifier does to the engine, and the frames that answer it.

No input or output happens here: frames in, frames out, so that a lagging drafter can be given all that is queued at
once and drafts for the newest state only. Sessions that can't be drafted for are answered with SessionError and
forgotten; later frames about them, or about ids never seen, are ignored.
"""

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from draftwood_drafter.backend import Draft
from draftwood_drafter.draft_contexts import DraftContexts
from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.session import DraftParams, FeatureRows, SessionFault, Shape
from draftwood_drafter.telemetry import DrafterTelemetry, DraftRecord
from draftwood_wire.errors import MalformedTensor
from draftwood_wire.tensor import MAX_CHUNK_BYTES, tensor_from_proto, tensor_to_proto
from draftwood_wire.tree import tree_to_proto
from draftwood_wire.v1 import sampling_pb2, verifier_service_pb2

_SHAPES = {
    sampling_pb2.SPECULATION_MODE_UNSPECIFIED: Shape.TREE,
    sampling_pb2.SPECULATION_MODE_OFF: Shape.OFF,
    sampling_pb2.SPECULATION_MODE_CHAIN: Shape.CHAIN,
    sampling_pb2.SPECULATION_MODE_TREE: Shape.TREE,
}


def draft_params(
    sampling: sampling_pb2.SamplingParams, speculation: sampling_pb2.SpeculationParams, node_limit: int
) -> DraftParams:
    """A request's wishes, within `node_limit`; a wish of 0 nodes takes all of it. Unknown modes draft trees."""
    return DraftParams(
        shape=_SHAPES.get(speculation.mode, Shape.TREE),
        node_limit=min(speculation.node_limit or node_limit, node_limit),
        # A temperature that is no number must not stop the draft; the verifier refuses such requests anyway.
        temperature=max(0.0, sampling.temperature) if np.isfinite(sampling.temperature) else 0.0,
        seed=sampling.seed if sampling.HasField("seed") else None,
    )


class FrameHandler:
    """Frames of one Speculate stream; make a new one for each stream, over the same engine."""

    def __init__(self, engine: DraftEngine, telemetry: DrafterTelemetry, node_limit: int) -> None:
        self._engine = engine
        self._telemetry = telemetry
        self._contexts = DraftContexts()
        self._node_limit = node_limit
        self._answers: list[verifier_service_pb2.SpeculateRequest] = []
        self._rows: list[FeatureRows] = []
        self._faults = 0

    def handle(
        self, frames: list[verifier_service_pb2.SpeculateResponse]
    ) -> list[verifier_service_pb2.SpeculateRequest]:
        """Apply frames in order, then append all their features at once and draft once. Returns what to send."""
        self._answers, self._rows, self._faults = [], [], 0
        for frame in frames:
            self._apply(frame)
        started_at, device_s = time.monotonic(), self._engine.device_s
        for fault in self._engine.append(self._rows):
            self._report(fault)
        drafts: list[Draft] = []
        ready = self._engine.ready()
        if ready:
            drafts, faults = self._engine.draft(ready)
            for fault in faults:
                self._report(fault)
            self._answers += _frames(drafts)
        if drafts or self._faults:
            self._record(started_at, self._engine.device_s - device_s, drafts)
        return self._answers

    def _record(self, started_at: float, device_s: float, drafts: list[Draft]) -> None:
        spans, requests = self._contexts.take(draft.session_id for draft in drafts)
        self._telemetry.drafted(
            DraftRecord(
                started_at=started_at,
                ended_at=time.monotonic(),
                device_s=device_s,
                sessions=len(drafts),
                nodes=sum(len(draft.tree) for draft in drafts),
                faults=self._faults,
                spans=spans,
                requests=requests,
            )
        )

    def _apply(self, frame: verifier_service_pb2.SpeculateResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "session_opened":
            self._open(frame.session_opened)
        elif kind == "features":
            self._take_features(frame.features)
        elif kind == "commits":
            self._commit(frame.commits)
        elif kind == "session_closed":
            self._close(frame.session_closed.session_id)

    def _open(self, opened: verifier_service_pb2.SessionOpened) -> None:
        session_id = opened.session_id
        self._close(session_id)
        self._contexts.opened(session_id, opened.traceparent)
        params = draft_params(opened.sampling, opened.speculation, self._node_limit)
        # A session that is handed over half-way has only its root's features still to come.
        decoding = opened.features_from + 1 >= len(opened.token_ids)
        try:
            self._engine.open(session_id, list(opened.token_ids), params, decoding=decoding)
        except SessionFault as fault:
            self._report(fault)
            return
        if opened.features_from > 0 and params.shape is not Shape.OFF:
            request = verifier_service_pb2.ContextRequest(session_id=session_id, from_position=0)
            self._answers.append(verifier_service_pb2.SpeculateRequest(context_request=request))

    def _take_features(self, chunk: verifier_service_pb2.FeatureChunk) -> None:
        if not self._engine.holds(chunk.session_id):
            return
        try:
            features = tensor_from_proto(chunk.features)
        except MalformedTensor as error:
            self._fail(chunk.session_id, f"features: {error}")
            return
        self._rows.append(FeatureRows(session_id=chunk.session_id, start=chunk.start_position, features=features))

    def _commit(self, batch: verifier_service_pb2.CommitBatch) -> None:
        features = self._commit_features(batch)
        first = 0
        for commit in batch.commits:
            rows, first = slice(first, first + commit.feature_rows), first + commit.feature_rows
            if not self._engine.holds(commit.session_id):
                continue
            if commit.feature_rows and features is None:
                self._fail(commit.session_id, "commits: features do not fit the rows of the batch")
                continue
            if commit.feature_rows > len(commit.token_ids):
                reason = f"feature_rows: {commit.feature_rows} for {len(commit.token_ids)} tokens"
                self._fail(commit.session_id, reason)
                continue
            try:
                wanted = commit.nodes_wanted if commit.HasField("nodes_wanted") else None
                self._engine.commit(commit.session_id, commit.base_len, list(commit.token_ids), wanted)
            except SessionFault as fault:
                self._report(fault)
                continue
            self._contexts.committed(commit.session_id, commit.traceparent)
            if features is not None and commit.feature_rows:
                start = commit.base_len - 1
                self._rows.append(FeatureRows(session_id=commit.session_id, start=start, features=features[rows]))

    def _commit_features(self, batch: verifier_service_pb2.CommitBatch) -> NDArray[np.float32] | None:
        """The batch's features if they have a row for every row that the commits claim."""
        wanted = sum(commit.feature_rows for commit in batch.commits)
        try:
            features = tensor_from_proto(batch.features) if wanted else None
        except MalformedTensor:
            return None
        if features is None or features.ndim != 2 or len(features) != wanted:
            return None
        return features

    def _close(self, session_id: int) -> None:
        self._engine.close(session_id)
        self._contexts.closed(session_id)
        # Rows of an older session of the same id must not reach a newer one.
        self._rows = [rows for rows in self._rows if rows.session_id != session_id]

    def _fail(self, session_id: int, reason: str) -> None:
        self._close(session_id)
        self._report(SessionFault(session_id, reason))

    def _report(self, fault: SessionFault) -> None:
        self._faults += 1
        self._contexts.closed(fault.session_id)
        error = verifier_service_pb2.SessionError(session_id=fault.session_id, message=fault.reason)
        self._answers.append(verifier_service_pb2.SpeculateRequest(session_error=error))


def _frames(drafts: list[Draft]) -> Iterator[verifier_service_pb2.SpeculateRequest]:
    """All drafts in one frame, or in several when they are large."""
    batch = verifier_service_pb2.ProposalBatch()
    size_bytes = 0
    for draft in drafts:
        proposal = _proposal(draft)
        size_bytes += proposal.ByteSize()
        if batch.proposals and size_bytes > MAX_CHUNK_BYTES:
            yield verifier_service_pb2.SpeculateRequest(proposals=batch)
            batch, size_bytes = verifier_service_pb2.ProposalBatch(), proposal.ByteSize()
        batch.proposals.append(proposal)
    if batch.proposals:
        yield verifier_service_pb2.SpeculateRequest(proposals=batch)


def _proposal(draft: Draft) -> verifier_service_pb2.Proposal:
    tensor = None if draft.hidden_states is None else tensor_to_proto(draft.hidden_states)
    return verifier_service_pb2.Proposal(
        session_id=draft.session_id, base_len=draft.base_len, tree=tree_to_proto(draft.tree), hidden_states=tensor
    )
