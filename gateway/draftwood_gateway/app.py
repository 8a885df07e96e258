"""The gateway as one running thing: a gRPC and an HTTP server in one event loop over one generator."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from draftwood_gateway.authentication import ApiKeys, GrpcKeys
from draftwood_gateway.config import GatewayConfig
from draftwood_gateway.generation import Generator
from draftwood_gateway.openai_routes import openai_app
from draftwood_gateway.servicer import GatewayServicer
from draftwood_gateway.telemetry.observer import GatewayTelemetry
from draftwood_gateway.tokenization import load_tokenizer
from draftwood_gateway.verifier_pool import VerifierPool
from draftwood_wire.errors import Unavailable
from draftwood_wire.tls import ServerTls
from draftwood_wire.transport import Server
from draftwood_wire.v1.gateway_service_pb2_grpc import add_GatewayServiceServicer_to_server

_SERVICE = "draftwood_wire.v1.GatewayService"


@dataclass(frozen=True, kw_only=True)
class Listening:
    """`host:port` of both servers and of the metrics, which may be empty."""

    grpc: str
    http: str
    metrics: str


class _HttpServer(uvicorn.Server):
    """Bound when made, so that a taken port is told at once. Signals are the process's business, see `__main__`."""

    def __init__(self, address: str, app: Starlette, drain_s: float, tls: ServerTls) -> None:
        self._listener = _bind(address)
        self.port = int(self._listener.getsockname()[1])
        settings = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=max(1, round(drain_s)),
            ssl_certfile=tls.certificate or None,
            ssl_keyfile=tls.key or None,
        )
        super().__init__(settings)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        serving = asyncio.create_task(self.serve(sockets=[self._listener]))
        try:
            yield
        finally:
            self.should_exit = True
            await serving
            self._listener.close()


@asynccontextmanager
async def running_gateway(config: GatewayConfig) -> AsyncIterator[Listening]:
    """Serve from entry to exit; the exit drains. Raises ValueError on unusable files, Unavailable on taken ports."""
    tokenizer = load_tokenizer(config.tokenizer)
    keys = ApiKeys.read(config.api_keys)
    async with VerifierPool(config.verifier, tokenizer.fingerprint, config.verifier_tls) as pool:
        telemetry = GatewayTelemetry(metrics=config.metrics, model_name=config.served_model)
        generator = Generator(tokenizer, pool, telemetry, config.served_model, config.resume_wait_s)
        grpc_server = Server(config.grpc, [_SERVICE], tls=config.tls, interceptors=[GrpcKeys(keys)])
        add_GatewayServiceServicer_to_server(GatewayServicer(generator, telemetry), grpc_server.grpc)
        http_server = _HttpServer(config.http, openai_app(generator, telemetry, keys), config.drain_s, config.tls)
        await pool.wait_until_ready(config.start_wait_s)
        async with _observing(telemetry, pool), http_server.running():
            await grpc_server.start()
            try:
                yield Listening(
                    grpc=f"{_host(config.grpc)}:{grpc_server.port}",
                    http=f"{_host(config.http)}:{http_server.port}",
                    metrics=telemetry.metrics_address,
                )
            finally:
                # Both drain at the same time.
                http_server.should_exit = True
                await grpc_server.stop(config.drain_s)


@asynccontextmanager
async def _observing(telemetry: GatewayTelemetry, pool: VerifierPool) -> AsyncIterator[None]:
    telemetry.start(pool)
    try:
        yield
    finally:
        await asyncio.to_thread(telemetry.close)


def _bind(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=2048)
    except (OSError, ValueError) as error:
        raise Unavailable(f"cannot listen on {address}: {error}") from error


def _host(address: str) -> str:
    return address.rpartition(":")[0]
