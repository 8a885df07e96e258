"""gRPC servers and channels, made the same way in every service: limits, keepalive, health, reflection, drain."""

from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from draftwood_wire.errors import Unavailable
from draftwood_wire.tls import ChannelTls, ServerTls

# Frames are chunked well below this (`tensor.MAX_CHUNK_BYTES`); prompts of a million tokens fit.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
DRAIN_S = 5.0
PLAINTEXT_SERVER = ServerTls()
PLAINTEXT_CHANNEL = ChannelTls()

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished without closing (a pulled cable) is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_OPTIONS: list[tuple[str, int]] = [
    *_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Two servers must never share a port by accident.
    ("grpc.so_reuseport", 0),
]
_CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


def open_channel(target: str, tls: ChannelTls = PLAINTEXT_CHANNEL) -> grpc.aio.Channel:
    """An asyncio channel to `host:port` or `unix:path`. Raises ValueError when a file of `tls` can't be used."""
    if credentials := tls.credentials():
        return grpc.aio.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
    return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)


def open_blocking_channel(target: str, tls: ChannelTls = PLAINTEXT_CHANNEL) -> grpc.Channel:
    """The same for code without an event loop."""
    if credentials := tls.credentials():
        return grpc.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
    return grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)


class Server:
    """An asyncio gRPC server with health and reflection; `health` starts NOT_SERVING."""

    def __init__(
        self,
        address: str,
        service_names: Sequence[str],
        *,
        tls: ServerTls = PLAINTEXT_SERVER,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """Binds at once. Raises Unavailable on a taken address, ValueError when a file of `tls` can't be used."""
        self.grpc = grpc.aio.server(options=_SERVER_OPTIONS, interceptors=interceptors)
        self._names = ["", *service_names]
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        reflection.enable_server_reflection([*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME], self.grpc)
        self.port = self._bind(address, tls.credentials())

    def _bind(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials:
                port = self.grpc.add_secure_port(address, credentials)
            else:
                port = self.grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {address}: {error}") from error
        return int(port)

    async def start(self) -> None:
        """Start answering; health says SERVING from here on."""
        await self.grpc.start()
        await self._set(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Tell health checkers first, then let running calls finish for `drain_s`."""
        await self._set(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.grpc.stop(drain_s)

    async def _set(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in self._names:
            await self._health.set(name, status)
