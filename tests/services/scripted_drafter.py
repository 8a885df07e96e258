"""A test double: a real gRPC client of Speculate that answers every commit with what its script says.

    async def script(session: DraftedSession) -> TokenTree | pb.Proposal | None: ...

    async with ScriptedDrafter(address, script, vocab_size=..., hidden_size=...) as drafter:
        ...

A script that waits for an event is a slow drafter. `send` puts any frame on the wire, malformed ones too.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from draftwood_wire.tensor import tensor_from_proto
from draftwood_wire.transport import open_channel
from draftwood_wire.tree import TokenTree, tree_to_proto
from draftwood_wire.v1 import tensor_pb2, verifier_service_pb2_grpc
from draftwood_wire.v1 import verifier_service_pb2 as pb


@dataclass
class DraftedSession:
    """What a drafter knows of a session."""

    opened: pb.SessionOpened
    tokens: list[int]
    features: dict[int, NDArray[np.float32]] = field(default_factory=dict)  # by position
    commits: list[pb.Commit] = field(default_factory=list)
    closed: bool = False

    @property
    def session_id(self) -> int:
        return self.opened.session_id


Script = Callable[[DraftedSession], Awaitable["TokenTree | pb.Proposal | None"]]


def make_tree(token_ids: list[int], parents: list[int] | None = None) -> TokenTree:
    """A tree with made-up falling log-probs; without parents it is a chain."""
    nodes = len(token_ids)
    return TokenTree(
        token_ids=np.array(token_ids, np.int32),
        parents=np.array(list(range(nodes)) if parents is None else parents, np.int32),
        log_probs=-0.1 * np.arange(1, nodes + 1, dtype=np.float32),
    )


class ScriptedDrafter:
    """Connected and welcomed once entered; raises grpc.aio.AioRpcError there when the verifier refuses it."""

    def __init__(
        self,
        address: str,
        script: Script,
        *,
        vocab_size: int,
        hidden_size: int,
        layer_ids: tuple[int, ...] = (1, 3),
        block_size: int = 8,
        node_limit: int = 256,
        asks_context: bool = True,
        **hello: Any,
    ) -> None:
        self.sessions: dict[int, DraftedSession] = {}
        self.frames: list[pb.SpeculateResponse] = []
        self.asks_context = asks_context
        self.hello = pb.Hello(
            **{
                "drafter_id": "scripted",
                "vocab_size": vocab_size,
                "hidden_size": hidden_size,
                "target_layer_ids": layer_ids,
                "block_size": block_size,
                "node_limit": node_limit,
                "feature_data_type": tensor_pb2.DATA_TYPE_FLOAT32,
                **hello,
            }
        )
        self._script = script
        self._channel = open_channel(address)
        self._changed = asyncio.Condition()
        self._one_write = asyncio.Lock()  # a call takes one at a time
        self._loop_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "ScriptedDrafter":
        self._call = verifier_service_pb2_grpc.VerifierServiceStub(self._channel).Speculate()  # type: ignore[call-arg]
        try:
            await self.send(pb.SpeculateRequest(hello=self.hello))
            self.welcome = (await self._read()).welcome
        except BaseException:
            await self._channel.close()
            raise
        self._loop_task = asyncio.create_task(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    async def kill(self) -> None:
        """Vanish without a word."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
            self._loop_task = None
        await self._channel.close()

    async def send(self, frame: pb.SpeculateRequest) -> None:
        async with self._one_write:
            await self._call.write(frame)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that came in makes the condition true."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def ended(self) -> grpc.StatusCode:
        """Wait for the verifier to end the stream."""
        return await self._call.code()  # type: ignore[no-any-return]

    async def _read(self) -> Any:
        frame = await self._call.read()
        if frame is grpc.aio.EOF:
            await self._call.wait_for_connection()
            raise grpc.aio.AioRpcError(
                await self._call.code(),
                await self._call.initial_metadata(),
                await self._call.trailing_metadata(),
                details=await self._call.details(),
            )
        return frame

    async def _receive(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while True:
                frame = await self._read()
                await self._take(frame)
                async with self._changed:
                    self._changed.notify_all()

    async def _take(self, frame: pb.SpeculateResponse) -> None:
        self.frames.append(frame)
        kind = frame.WhichOneof("frame")
        if kind == "session_opened":
            await self._open(frame.session_opened)
        elif kind == "features":
            rows = tensor_from_proto(frame.features.features)
            self._store(self.sessions[frame.features.session_id], frame.features.start_position, rows)
        elif kind == "commits":
            await self._answer(frame.commits)
        elif kind == "session_closed":
            self.sessions[frame.session_closed.session_id].closed = True

    async def _open(self, opened: pb.SessionOpened) -> None:
        self.sessions[opened.session_id] = DraftedSession(opened, list(opened.token_ids))
        if opened.features_from > 0 and self.asks_context:
            request = pb.ContextRequest(session_id=opened.session_id, from_position=0)
            await self.send(pb.SpeculateRequest(context_request=request))

    async def _answer(self, batch: pb.CommitBatch) -> None:
        features = tensor_from_proto(batch.features)
        first_row = 0
        proposals = []
        for commit in batch.commits:
            session = self.sessions[commit.session_id]
            assert commit.base_len == len(session.tokens), "a commit does not follow the one before"
            self._store(session, commit.base_len - 1, features[first_row : first_row + commit.feature_rows])
            first_row += commit.feature_rows
            session.tokens += commit.token_ids
            session.commits.append(commit)
            if commit.nodes_wanted == 0:
                continue
            answer = await self._script(session)
            if isinstance(answer, TokenTree):
                answer = pb.Proposal(
                    session_id=session.session_id, base_len=len(session.tokens), tree=tree_to_proto(answer)
                )
            if answer is not None:
                proposals.append(answer)
        assert first_row == len(features), "features of no commit"
        if proposals:
            await self.send(pb.SpeculateRequest(proposals=pb.ProposalBatch(proposals=proposals)))

    def _store(self, session: DraftedSession, start: int, rows: NDArray[np.float32]) -> None:
        for index, row in enumerate(rows):
            session.features[start + index] = row
