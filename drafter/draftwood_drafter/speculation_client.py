"""The stream to a verifier: dial, say Hello, then receive, draft and send until it breaks; dial again.

The receive loop fills a queue; the draft loop takes all that is queued, handles it in one go and sends the answers.
When a stream ends every session is forgotten: the next verifier to answer opens the live ones again.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc.aio

from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.frame_handler import FrameHandler
from draftwood_drafter.telemetry import DrafterTelemetry
from draftwood_wire.tls import ChannelTls
from draftwood_wire.transport import PLAINTEXT_CHANNEL, open_channel
from draftwood_wire.v1 import verifier_service_pb2
from draftwood_wire.v1.verifier_service_pb2_grpc import VerifierServiceStub

logger = logging.getLogger(__name__)

Request = verifier_service_pb2.SpeculateRequest
Response = verifier_service_pb2.SpeculateResponse
Stream = grpc.aio.StreamStreamCall[Request, Response]

# Beyond this many unread frames the verifier's sends block, which is what a lagging drafter wants.
QUEUE_FRAMES = 256
# How long a drafter that is behind waits for another frame before it drafts for what it has.
CATCH_UP_S = 0.0005


class Backoff:
    """Exponential waits with full jitter, so that drafters that lost one verifier do not return in step."""

    def __init__(self, min_s: float, max_s: float, *, uniform: Callable[[float, float], float] = random.uniform):
        self._min_s = min_s
        self._max_s = max_s
        self._next_s = min_s
        self._uniform = uniform

    def next_s(self) -> float:
        """A wait between half and all of the current bound, which then doubles up to the maximum."""
        bound = self._next_s
        self._next_s = min(2 * bound, self._max_s)
        return self._uniform(bound / 2, bound)

    def reset(self) -> None:
        self._next_s = self._min_s


class FrameQueue:
    """Frames received and not handled yet; None marks the end of the stream."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[Response | None] = asyncio.Queue(QUEUE_FRAMES)

    async def fill(self, stream: Stream) -> None:
        """The receive loop: until the stream ends or breaks, whose status the call keeps."""
        with suppress(grpc.aio.AioRpcError):
            while isinstance(frame := await stream.read(), Response):
                await self._frames.put(frame)
        await self._frames.put(None)

    async def take(self) -> tuple[list[Response], bool]:
        """At least one frame, then all others at hand; False when the stream is over.

        A frame that had to be waited for means the drafter keeps up, and is answered at once. Otherwise it is behind:
        more frames may sit in gRPC's buffers, which only hand over while this loop sleeps.
        """
        behind = not self._frames.empty()
        frames = [await self._frames.get()]
        with suppress(TimeoutError):
            while frames[-1] is not None:
                if not self._frames.empty():
                    frames.append(self._frames.get_nowait())
                elif behind:
                    frames.append(await asyncio.wait_for(self._frames.get(), CATCH_UP_S))
                else:
                    break
        return [frame for frame in frames if frame is not None], frames[-1] is not None


class SpeculationClient:
    def __init__(
        self,
        engine: DraftEngine,
        hello: verifier_service_pb2.Hello,
        verifier: str,
        backoff: Backoff,
        telemetry: DrafterTelemetry,
        tls: ChannelTls = PLAINTEXT_CHANNEL,
    ) -> None:
        self._engine = engine
        self._hello = hello
        self._verifier = verifier
        self._backoff = backoff
        self._tls = tls
        self._telemetry = telemetry
        self.connected = False

    async def run(self) -> None:
        """Serve the verifier until cancelled."""
        while True:
            try:
                async with self._stream() as stream:
                    await self._serve(stream)
            except grpc.aio.AioRpcError as error:
                logger.warning("verifier %s: %s: %s", self._verifier, error.code(), error.details())
            except asyncio.InvalidStateError:
                logger.warning("verifier %s: the stream ended during a send", self._verifier)
            finally:
                self.connected = False
                self._engine.close_all()
            await asyncio.sleep(self._backoff.next_s())

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[Stream]:
        async with open_channel(self._verifier, self._tls) as channel:
            verifier: Any = VerifierServiceStub(channel)  # Known stubs demand an iterator, which is optional.
            stream: Stream = verifier.Speculate()
            try:
                yield stream
            finally:
                stream.cancel()

    async def _serve(self, stream: Stream) -> None:
        """One stream from Hello to its end, whose status is logged. Raises AioRpcError when a send meets a break."""
        await stream.write(Request(hello=self._hello))
        first = await stream.read()
        if not isinstance(first, Response):
            await self._log_end(stream)
            return
        if first.WhichOneof("frame") != "welcome":
            logger.warning("verifier %s: its first frame is %s", self._verifier, first.WhichOneof("frame"))
            return
        if first.welcome.hidden_state_data_type != self._hello.hidden_state_data_type:
            logger.warning(
                "verifier %s: makes no trees of hidden states; start this drafter with --head drafter", self._verifier
            )
            return
        self._backoff.reset()
        self.connected = True
        logger.info("verifier %s: connected", self._verifier)
        node_limit = min(self._hello.node_limit, first.welcome.node_limit or self._hello.node_limit)
        handler = FrameHandler(self._engine, self._telemetry, node_limit)
        queue = FrameQueue()
        receiving = asyncio.create_task(queue.fill(stream))
        try:
            await self._answer(stream, queue, handler)
        finally:
            receiving.cancel()
            with suppress(asyncio.CancelledError):
                await receiving
        await self._log_end(stream)

    async def _log_end(self, stream: Stream) -> None:
        code, details = await stream.code(), await stream.details()
        logger.warning("verifier %s: the stream ended with %s: %s", self._verifier, code, details)

    async def _answer(self, stream: Stream, queue: FrameQueue, handler: FrameHandler) -> None:
        """The draft and send loop."""
        alive = True
        while alive:
            frames, alive = await queue.take()
            for request in handler.handle(frames):
                await stream.write(request)
