"""API keys at both faces of the gateway."""

import asyncio
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwood_client import AsyncClient, Client
from draftwood_gateway.authentication import ApiKeys
from draftwood_wire.errors import Unauthenticated
from draftwood_wire.transport import open_channel
from draftwood_wire.v1 import gateway_service_pb2 as pb
from draftwood_wire.v1.gateway_service_pb2_grpc import GatewayServiceStub
from tests.services.fake_verifier import FakeVerifier
from tests.services.gateway_harness import make_tokenizer, saying, stage

TEXT = "the tree accepts the draft"
TRACEPARENT = f"00-{1:032x}-{2:016x}-01"
BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 100}


def fake(folder: Path) -> FakeVerifier:
    tokenizer = make_tokenizer(folder)
    return FakeVerifier(script=saying(tokenizer.encode(TEXT).ids), vocab_size=tokenizer.get_vocab_size())


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "api-keys"
    file.write_text("# the team\n\nfirst-key\n  second-key\n")
    return str(file)


def test_http_lets_in_who_shows_a_key(tmp_path: Path, keys: str) -> None:
    async def main() -> None:
        verifier = fake(tmp_path)
        async with stage(tmp_path, [verifier], api_keys=keys) as running, httpx.AsyncClient() as http:
            url = running.http + "/v1/completions"
            for header in ({}, {"Authorization": "Bearer third-key"}, {"Authorization": "Basic first-key"}):
                answer = await http.post(url, json=BODY, headers=header)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert (await http.get(running.http + "/v1/models")).status_code == 401
            assert (await http.get(running.http + "/healthz")).status_code == 200
            assert verifier.calls == []
            for key in ("first-key", "second-key"):
                answer = await http.post(url, json=BODY, headers={"Authorization": f"Bearer {key}"})
                assert answer.json()["choices"][0]["text"] == TEXT

    asyncio.run(main())


def test_grpc_lets_in_who_shows_a_key(tmp_path: Path, keys: str) -> None:
    async def main() -> None:
        verifier = fake(tmp_path)
        async with stage(tmp_path, [verifier], api_keys=keys) as running:
            for key in ("", "third-key", "# the team"):
                async with AsyncClient(running.grpc, api_key=key) as client:
                    with pytest.raises(Unauthenticated, match="API key"):
                        await client.generate("hello")
                    with pytest.raises(Unauthenticated, match="API key"):
                        _ = [chunk async for chunk in client.stream("hello")]
                    with pytest.raises(Unauthenticated, match="API key"):
                        await client.models()
            assert verifier.calls == []
            async with AsyncClient(running.grpc, api_key="second-key") as client:
                assert (await client.generate("hello", traceparent=TRACEPARENT)).text == TEXT
                assert "".join([chunk.text async for chunk in client.stream("hello")]) == TEXT
            assert await asyncio.to_thread(_blocking_models, running.grpc) == ["tiny"]
        assert verifier.calls[0].metadata["traceparent"] == TRACEPARENT
        assert "authorization" not in verifier.calls[0].metadata

    asyncio.run(main())


def _blocking_models(address: str) -> list[str]:
    with Client(address, api_key="first-key") as client:
        return client.models()


def test_health_is_open_and_refusals_say_unauthenticated(tmp_path: Path, keys: str) -> None:
    async def main() -> None:
        async with stage(tmp_path, [fake(tmp_path)], api_keys=keys) as running, open_channel(running.grpc) as channel:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await GatewayServiceStub(channel).ListModels(pb.ListModelsRequest())
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(main())


@pytest.mark.parametrize(("content", "message"), [("\n# nothing\n", "holds no key"), ("schlüssel", "ascii")])
def test_a_file_without_usable_keys_lets_nobody_in(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "api-keys"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        ApiKeys.read(str(file))
    with pytest.raises(ValueError, match="absent"):
        ApiKeys.read(str(tmp_path / "absent"))
