"""The asyncio client."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, Unpack

import grpc.aio

from draftwood_client.parameters import Messages, Parameters, Prompt, call_metadata, text_request
from draftwood_client.results import Chunk, Generation, chunk_of, generation_of
from draftwood_wire.errors import error_of
from draftwood_wire.tls import ChannelTls
from draftwood_wire.transport import open_channel
from draftwood_wire.v1 import gateway_service_pb2 as pb
from draftwood_wire.v1.gateway_service_pb2_grpc import GatewayServiceStub


class AsyncClient:
    """A connection to the gateway at `host:port`, for one event loop; `ca`, a PEM file, makes it TLS.

    Cancelling a task cancels its request.
    """

    def __init__(self, address: str, *, api_key: str = "", ca: str = "") -> None:
        self._api_key = api_key
        self._channel = open_channel(address, ChannelTls(ca=ca))
        self._stub = GatewayServiceStub(self._channel)

    async def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Messages | None = None,
        timeout_s: float | None = None,
        traceparent: str = "",
        **parameters: Unpack[Parameters],
    ) -> Generation:
        """The whole answer to a prompt (text or token ids) or to messages. Raises DraftwoodError."""
        request = pb.GatewayServiceGenerateRequest(request=text_request(prompt, messages, parameters))
        with _typed_errors():
            return generation_of(
                await self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata(traceparent))
            )

    async def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Messages | None = None,
        timeout_s: float | None = None,
        traceparent: str = "",
        **parameters: Unpack[Parameters],
    ) -> AsyncGenerator[Chunk]:
        """The answer as it is decoded; closing the generator cancels the request. Raises DraftwoodError."""
        request = pb.GenerateStreamRequest(request=text_request(prompt, messages, parameters))
        with _typed_errors():
            call = self._stub.GenerateStream(request, timeout=timeout_s, metadata=self._metadata(traceparent))
            try:
                async for message in call:
                    yield chunk_of(message)
            finally:
                call.cancel()

    async def models(self) -> list[str]:
        with _typed_errors():
            return list((await self._stub.ListModels(pb.ListModelsRequest(), metadata=self._metadata())).models)

    def _metadata(self, traceparent: str = "") -> tuple[tuple[str, str], ...]:
        return call_metadata(traceparent, self._api_key)

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_of(error.code(), error.details() or "") from error
