"""The probe's exit codes, which orchestrators act on."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from draftwood import health
from draftwood.__main__ import main
from draftwood_wire.transport import Server

NAME = "draftwood_wire.v1.VerifierService"


def probe(*arguments: str) -> int:
    return health.run(health.parse_arguments(arguments))


def with_server(ask: Callable[[Server, str], Awaitable[None]]) -> None:
    async def serve() -> None:
        server = Server("127.0.0.1:0", [NAME])
        try:
            await ask(server, f"127.0.0.1:{server.port}")
        finally:
            await server.stop(0)

    asyncio.run(serve())


def test_a_service_that_serves_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async def ask(server: Server, address: str) -> None:
        await server.start()
        assert await asyncio.to_thread(probe, address) == health.SERVING
        assert await asyncio.to_thread(probe, address, "--service", NAME) == health.SERVING
        assert await asyncio.to_thread(probe, address, "--service", "Absent") == health.NOT_SERVING
        assert await asyncio.to_thread(main, ["health", address]) == health.SERVING

    with_server(ask)
    printed = capsys.readouterr()
    assert "SERVING" in printed.out
    assert "no service 'Absent'" in printed.err


def test_a_service_that_does_not_serve_says_so() -> None:
    async def serve() -> None:
        server = grpc.aio.server()
        servicer = HealthServicer()
        await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        assert await asyncio.to_thread(probe, f"127.0.0.1:{port}") == health.NOT_SERVING
        await server.stop(0)

    asyncio.run(serve())


def test_nobody_there_is_no_answer() -> None:
    assert probe("127.0.0.1:1", "--timeout-s", "0.2") == health.NO_ANSWER


def test_an_unusable_file_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe("127.0.0.1:1", "--ca", str(tmp_path / "absent.pem")) == health.WRONG_USAGE
    assert "absent.pem" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit_:
        probe()
    assert exit_.value.code == health.WRONG_USAGE


def test_the_probe_pays_for_grpc_only() -> None:
    code = "import sys, draftwood.health; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'starlette')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
