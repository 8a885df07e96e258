"""The blocking client."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, Unpack

import grpc

from draftwood_client.parameters import Messages, Parameters, Prompt, call_metadata, text_request
from draftwood_client.results import Chunk, Generation, chunk_of, generation_of
from draftwood_wire.errors import error_of
from draftwood_wire.tls import ChannelTls
from draftwood_wire.transport import open_blocking_channel
from draftwood_wire.v1 import gateway_service_pb2 as pb
from draftwood_wire.v1.gateway_service_pb2_grpc import GatewayServiceStub


class Client:
    """A connection to the gateway at `host:port`; threads may share it. `ca`, a PEM file, makes it TLS."""

    def __init__(self, address: str, *, api_key: str = "", ca: str = "") -> None:
        self._api_key = api_key
        self._channel = open_blocking_channel(address, ChannelTls(ca=ca))
        self._stub = GatewayServiceStub(self._channel)

    def generate(
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
            return generation_of(self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata(traceparent)))

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Messages | None = None,
        timeout_s: float | None = None,
        traceparent: str = "",
        **parameters: Unpack[Parameters],
    ) -> Iterator[Chunk]:
        """The answer as it is decoded; closing the iterator cancels the request. Raises DraftwoodError."""
        request = pb.GenerateStreamRequest(request=text_request(prompt, messages, parameters))
        with _typed_errors():
            call = self._stub.GenerateStream(request, timeout=timeout_s, metadata=self._metadata(traceparent))
            try:
                yield from map(chunk_of, call)
            finally:
                call.cancel()

    def models(self) -> list[str]:
        with _typed_errors():
            return list(self._stub.ListModels(pb.ListModelsRequest(), metadata=self._metadata()).models)

    def _metadata(self, traceparent: str = "") -> tuple[tuple[str, str], ...]:
        return call_metadata(traceparent, self._api_key)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        # Every error of a call is a Call too; the stubs know only the base.
        if not isinstance(error, grpc.Call):
            raise
        raise error_of(error.code(), error.details() or "") from error
