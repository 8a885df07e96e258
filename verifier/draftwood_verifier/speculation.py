"""The drafters' side: one bidi stream a drafter, as a receive loop and a send loop.

What comes in is not trusted; what goes out waits in a bounded queue, so that a drafter that does not read is dropped
and never holds up the engine.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from draftwood_verifier.backlog import Update
from draftwood_verifier.engine import Engine
from draftwood_verifier.sequence import DraftMode, Sequence
from draftwood_verifier.telemetry.observer import VerifierTelemetry
from draftwood_wire.errors import Incompatible, InvalidRequest, MalformedTensor, Overloaded, Unavailable
from draftwood_wire.tensor import row_chunks, tensor_from_proto, tensor_to_proto
from draftwood_wire.tree import MAX_NODES, tree_from_proto
from draftwood_wire.v1 import sampling_pb2, tensor_pb2
from draftwood_wire.v1 import verifier_service_pb2 as pb

_LOG = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]
Frames = AsyncIterator[pb.SpeculateRequest]

HELLO_TIMEOUT_S = 10.0
# Frames that wait for a drafter to read: above the first, replayed features wait; above the second, it is dropped.
CONGESTED_BYTES = 8 * 1024 * 1024
QUEUE_LIMIT_BYTES = 256 * 1024 * 1024
# Features of one CommitBatch; a batch that has more goes out as several.
COMMIT_LIMIT_BYTES = 4 * 1024 * 1024

_DATA_TYPES = {tensor_pb2.DATA_TYPE_FLOAT32, tensor_pb2.DATA_TYPE_FLOAT16, tensor_pb2.DATA_TYPE_BFLOAT16}
_MODES = {
    DraftMode.OFF: sampling_pb2.SPECULATION_MODE_OFF,
    DraftMode.CHAIN: sampling_pb2.SPECULATION_MODE_CHAIN,
    DraftMode.TREE: sampling_pb2.SPECULATION_MODE_TREE,
    DraftMode.AUTO: sampling_pb2.SPECULATION_MODE_TREE,
}


class SpeculationHandler:
    """Takes drafters in, and feeds the engine with what they send."""

    def __init__(
        self,
        engine: Engine,
        telemetry: VerifierTelemetry,
        *,
        tokenizer_fingerprint: str,
        rejection: bool = False,
        queue_limit_bytes: int = QUEUE_LIMIT_BYTES,
    ) -> None:
        self.sent_bytes = self.received_bytes = 0  # of frames, since the start
        self._engine = engine
        self._telemetry = telemetry
        self._fingerprint = tokenizer_fingerprint
        self._rejection = rejection
        self.queue_limit_bytes = queue_limit_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def serve(self, frames: Frames, context: Context) -> None:
        """One drafter from Hello to its end; raises Incompatible, InvalidRequest or Overloaded."""
        hello = await _read_hello(frames)
        self._check(hello)
        stream = DrafterStream(hello, self._engine, self._telemetry, self.queue_limit_bytes)
        await context.write(_welcome(stream))
        self._engine.join(stream)
        _LOG.info("drafter %s joined", stream.drafter_id)
        try:
            await self._both_ways(stream, frames, context)
        finally:
            self._engine.leave(stream)
            _LOG.info("drafter %s left", stream.drafter_id)
        if self._closing:
            raise Unavailable("this verifier is stopping")

    def close(self) -> None:
        """End all streams; the drafters will dial again, and find nobody or somebody else."""
        self._closing = True
        for task in self._tasks:
            task.cancel()

    async def _both_ways(self, stream: "DrafterStream", frames: Frames, context: Context) -> None:
        loops = (self._receive(stream, frames), self._send(stream, context), stream.overflow())
        tasks = {asyncio.create_task(loop) for loop in loops}
        self._tasks |= tasks
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tasks -= tasks
            for task in tasks:
                task.cancel()
        for task in done:
            with contextlib.suppress(asyncio.CancelledError, grpc.RpcError):
                task.result()

    async def _receive(self, stream: "DrafterStream", frames: Frames) -> None:
        async for frame in frames:
            self.received_bytes += frame.ByteSize()
            self._take(stream, frame)

    async def _send(self, stream: "DrafterStream", context: Context) -> None:
        while True:
            frame, size_bytes = await stream.next_frame()
            await context.write(frame)
            self.sent_bytes += size_bytes
            stream.sent(size_bytes)

    def _take(self, stream: "DrafterStream", frame: pb.SpeculateRequest) -> None:
        drafters = self._engine.drafters
        kind = frame.WhichOneof("frame")
        if kind == "proposals":
            for proposal in frame.proposals.proposals:
                self._propose(stream, proposal)
        elif kind == "context_request":
            request = frame.context_request
            drafters.ask_replay(stream, request.session_id, request.from_position)
        elif kind == "session_error":
            drafters.give_up(stream, frame.session_error.session_id)
        else:  # a second Hello, or a frame of a later minor
            drafters.counters.refused += 1
        self._engine.wake()

    def _propose(self, stream: "DrafterStream", proposal: pb.Proposal) -> None:
        drafters, session_id, base_len = self._engine.drafters, proposal.session_id, proposal.base_len
        if stream.lacks_head:
            drafters.propose_hidden(stream, session_id, base_len, self._hidden_states(stream, proposal.hidden_states))
        else:
            drafters.propose(stream, session_id, base_len, tree_from_proto(proposal.tree))

    def _hidden_states(self, stream: "DrafterStream", tensor: tensor_pb2.Tensor) -> NDArray[np.float32] | None:
        """[depths, hidden]; None when it is not what was agreed on."""
        try:
            rows = tensor_from_proto(tensor)
        except MalformedTensor:
            return None
        if rows.ndim != 2 or rows.shape[1] != self._engine.runner.hidden_size:
            return None
        agreed = tensor.data_type == stream.hidden_state_data_type and 1 <= len(rows) <= stream.max_depth
        return rows if agreed and np.isfinite(rows).all() else None

    def _check(self, hello: pb.Hello) -> None:
        runner = self._engine.runner
        if hello.vocab_size != runner.vocab_size:
            raise Incompatible(f"vocab_size: the drafter has {hello.vocab_size}, the target {runner.vocab_size}")
        if hello.hidden_size != runner.hidden_size:
            raise Incompatible(f"hidden_size: the drafter has {hello.hidden_size}, the target {runner.hidden_size}")
        # Targets of one series may share width and vocabulary.
        if hello.num_target_layers not in (0, runner.layers):
            raise Incompatible(
                f"num_target_layers: the draft is for {hello.num_target_layers}, the target has {runner.layers}"
            )
        theirs, ours = hello.tokenizer_fingerprint, self._fingerprint
        if theirs and ours and theirs != ours:
            raise Incompatible(f"tokenizer_fingerprint: the drafter has {theirs}, the target {ours}")
        layer_ids = list(hello.target_layer_ids)
        if not layer_ids or max(layer_ids) >= runner.layers or len(set(layer_ids)) < len(layer_ids):
            raise Incompatible(f"target_layer_ids: {layer_ids} are not distinct layers of 0..{runner.layers - 1}")
        if hello.block_size < 2:
            raise Incompatible(f"block_size: {hello.block_size} is below 2")
        if hello.node_limit < 1:
            raise Incompatible(f"node_limit: {hello.node_limit} is below 1")
        if hello.feature_data_type not in _DATA_TYPES:
            raise Incompatible(f"feature_data_type: {hello.feature_data_type} can't be sent")
        if hello.hidden_state_data_type not in _DATA_TYPES | {tensor_pb2.DATA_TYPE_UNSPECIFIED}:
            raise Incompatible(f"hidden_state_data_type: {hello.hidden_state_data_type} can't be sent")
        if self._rejection and hello.hidden_state_data_type == tensor_pb2.DATA_TYPE_UNSPECIFIED:
            raise Incompatible(
                "hidden_state_data_type: the verifier's --verification rejection needs hidden states in the place of "
                "trees; start the drafter with --head verifier"
            )


class DrafterStream:
    """One connected drafter, as the engine sees it; its methods only put frames into the queue."""

    def __init__(self, hello: pb.Hello, engine: Engine, telemetry: VerifierTelemetry, queue_limit_bytes: int) -> None:
        self.sessions: dict[int, Sequence] = {}
        self.late = False
        self.drafter_id = hello.drafter_id
        self.layer_ids = tuple(hello.target_layer_ids)
        self.node_limit = min(hello.node_limit, MAX_NODES)
        self.max_depth = hello.block_size - 1
        self.data_type = hello.feature_data_type
        self.hidden_state_data_type = hello.hidden_state_data_type
        self.lacks_head = hello.hidden_state_data_type != tensor_pb2.DATA_TYPE_UNSPECIFIED
        self._engine = engine
        self._telemetry = telemetry
        self._limit_bytes = queue_limit_bytes
        self._queue: deque[tuple[pb.SpeculateResponse, int]] = deque()
        self._queued_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._overflowed = asyncio.Event()

    @property
    def congested(self) -> bool:
        return self._queued_bytes > CONGESTED_BYTES

    @property
    def sending(self) -> bool:
        return self._queued_bytes > 0

    def send_opened(self, sequence: Sequence, tokens: list[int], features_from: int) -> None:
        assert sequence.draft is not None, "a session is opened before it has a draft"
        params = sequence.sampling
        opened = pb.SessionOpened(
            session_id=sequence.session_id,
            token_ids=tokens,
            features_from=features_from,
            sampling=sampling_pb2.SamplingParams(
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
                min_p=params.min_p,
                seed=params.seed,
            ),
            speculation=sampling_pb2.SpeculationParams(
                mode=_MODES[sequence.mode], node_limit=sequence.draft.node_limit
            ),
            traceparent=sequence.traceparent,
        )
        self._put(pb.SpeculateResponse(session_opened=opened))

    def send_features(self, session_id: int, start: int, features: NDArray[np.float32]) -> None:
        for first, rows in row_chunks(features):
            tensor = tensor_to_proto(rows, self.data_type)
            chunk = pb.FeatureChunk(session_id=session_id, start_position=start + first, features=tensor)
            self._put(pb.SpeculateResponse(features=chunk))

    def send_updates(self, updates: list[Update]) -> None:
        width = len(self.layer_ids) * self._engine.runner.hidden_size
        row_limit = max(1, COMMIT_LIMIT_BYTES // (4 * width))
        traced = self._telemetry.ask_drafts((self.sessions[u.session_id], u.round) for u in updates if u.nodes_wanted)
        batch: list[Update] = []
        for update in updates:
            if batch and sum(len(u.features) for u in batch) + len(update.features) > row_limit:
                self._put_commits(batch, width, traced)
                batch = []
            batch.append(update)
        self._put_commits(batch, width, traced)

    def send_closed(self, session_id: int) -> None:
        self._put(pb.SpeculateResponse(session_closed=pb.SessionClosed(session_id=session_id)))

    async def next_frame(self) -> tuple[pb.SpeculateResponse, int]:
        """The next frame to send and its bytes, which count as queued until `sent`."""
        while not self._queue:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._queue.popleft()

    def sent(self, size_bytes: int) -> None:
        was_congested = self.congested
        self._queued_bytes -= size_bytes
        if was_congested and not self.congested:
            self._engine.wake()

    async def overflow(self) -> None:
        """Return never; raises Overloaded when too much waits for the drafter to read."""
        await self._overflowed.wait()
        raise Overloaded(f"{self._queued_bytes} bytes wait for drafter {self.drafter_id}, which does not read them")

    def _put_commits(self, updates: list[Update], width: int, traced: dict[int, str]) -> None:
        pieces = [u.features.reshape(-1, width) for u in updates]
        features = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        message = pb.CommitBatch(
            commits=[_commit_message(u, traced.get(u.session_id, "")) for u in updates],
            features=tensor_to_proto(features, self.data_type),
        )
        self._put(pb.SpeculateResponse(commits=message))

    def _put(self, frame: pb.SpeculateResponse) -> None:
        if self._overflowed.is_set():
            return
        size_bytes = frame.ByteSize()
        self._queued_bytes += size_bytes
        if self._queued_bytes > self._limit_bytes:
            self._overflowed.set()
        self._queue.append((frame, size_bytes))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _commit_message(update: Update, traceparent: str) -> pb.Commit:
    return pb.Commit(
        session_id=update.session_id,
        round=update.round,
        base_len=update.base_len,
        token_ids=update.tokens,
        feature_rows=len(update.features),
        nodes_verified=update.nodes_verified,
        nodes_wanted=update.nodes_wanted,
        traceparent=traceparent,
    )


def _welcome(stream: DrafterStream) -> pb.SpeculateResponse:
    return pb.SpeculateResponse(
        welcome=pb.Welcome(
            protocol_minor=0,
            feature_data_type=stream.data_type,
            node_limit=stream.node_limit,
            hidden_state_data_type=stream.hidden_state_data_type,
        )
    )


async def _read_hello(frames: Frames) -> pb.Hello:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            frame = await anext(frames, None)
    except TimeoutError:
        raise InvalidRequest(f"hello: did not come within {HELLO_TIMEOUT_S:g} s") from None
    if frame is None or frame.WhichOneof("frame") != "hello":
        raise InvalidRequest("hello: must be the first frame")
    return frame.hello
