"""The gRPC face, through the package's own client."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwood_client import AsyncClient, Client, FinishReason
from draftwood_wire.errors import InvalidRequest, Overloaded, UnknownModel
from draftwood_wire.transport import open_channel
from tests.services.fake_verifier import FakeVerifier
from tests.services.gateway_harness import make_tokenizer, saying, stage

TEXT = "the tree 🙂 accepts"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def fake(folder: Path, **options: Any) -> FakeVerifier:
    tokenizer = make_tokenizer(folder)
    ids = tokenizer.encode(TEXT).ids
    return FakeVerifier(
        script=saying([*ids, 0], 1), vocab_size=tokenizer.get_vocab_size(), eos_token_ids=(0,), **options
    )


def test_whole_streamed_blocking_and_asyncio_agree(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path)
        async with stage(tmp_path, [verifier]) as running, AsyncClient(running.grpc) as client:
            ids = [*running.tokenizer.encode(TEXT).ids, 0]
            whole = await client.generate("hello", temperature=0.5, seed=7, traceparent=TRACEPARENT)
            assert (whole.text, list(whole.token_ids), whole.finish_reason) == (TEXT, ids, FinishReason.STOP)
            assert whole.usage.completion_tokens == len(ids)
            chunks = [chunk async for chunk in client.stream(running.tokenizer.encode("hello").ids)]
            assert "".join(chunk.text for chunk in chunks) == TEXT
            assert [token for chunk in chunks for token in chunk.token_ids] == ids
            assert chunks[-1].usage == whole.usage
            assert all("�" not in chunk.text for chunk in chunks)
            assert await asyncio.to_thread(_blocking, running.grpc) == (TEXT, TEXT, ["tiny"])
        assert verifier.calls[0].request.sampling.seed == 7
        assert verifier.calls[0].metadata["traceparent"] == TRACEPARENT
        assert verifier.calls[0].request.prompt_token_ids == verifier.calls[1].request.prompt_token_ids

    asyncio.run(main())


def _blocking(address: str) -> tuple[str, str, list[str]]:
    with Client(address) as client:
        whole = client.generate(messages=[{"role": "user", "content": "hi"}], speculation="tree", node_limit=8)
        return whole.text, "".join(chunk.text for chunk in client.stream("hello")), client.models()


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"prompt": ""}, InvalidRequest, "prompt"),
    ({"prompt": []}, InvalidRequest, "prompt"),
    ({"prompt": [1 << 20]}, InvalidRequest, "prompt"),
    ({"prompt": [1] * 256}, InvalidRequest, "prompt"),
    ({"messages": []}, InvalidRequest, "messages"),
    ({"prompt": "a", "max_tokens": -1}, InvalidRequest, "max_tokens"),
    ({"prompt": "a", "temperature": float("nan")}, InvalidRequest, "temperature"),
    ({"prompt": "a", "top_p": float("inf")}, InvalidRequest, "top_p"),
    ({"prompt": "a", "stop": ""}, InvalidRequest, "stop"),
    ({"prompt": "a", "stop_token_ids": [5000]}, InvalidRequest, "stop_token_ids"),
    ({"prompt": "a", "node_limit": 300}, InvalidRequest, "node_limit"),
    ({"prompt": "a", "model": "other"}, UnknownModel, "model"),
]


def test_bad_input_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path)
        async with stage(tmp_path, [verifier]) as running, AsyncClient(running.grpc) as client:
            for parameters, kind, name in BAD:
                with pytest.raises(kind, match=f"^{name}: "):
                    await client.generate(**parameters)
                with pytest.raises(kind, match=f"^{name}: "):
                    async for _ in client.stream(**parameters):
                        pass
        assert not verifier.calls

    asyncio.run(main())


def test_overload_is_told_and_a_stop_string_ends_ids_too(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path, breaks=[(0, grpc.StatusCode.RESOURCE_EXHAUSTED)])
        async with stage(tmp_path, [verifier]) as running, AsyncClient(running.grpc) as client:
            with pytest.raises(Overloaded):
                await client.generate("hello")
            stopped = await client.generate("hello", stop=["🙂", "zzz"])
            ids = running.tokenizer.encode("the tree 🙂").ids
            assert (stopped.text, list(stopped.token_ids)) == ("the tree ", ids)
            assert stopped.usage.completion_tokens == len(ids)

    asyncio.run(main())


def test_leaving_a_stream_cancels_the_verifiers_call(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path, hold=True)
        async with stage(tmp_path, [verifier]) as running, AsyncClient(running.grpc) as client:
            stream = client.stream("hello")
            assert (await anext(stream)).text
            await stream.aclose()
            await asyncio.wait_for(verifier.calls[0].ended.wait(), 5)
            assert verifier.calls[0].cancelled

    asyncio.run(main())


def test_health_is_standard(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path, [fake(tmp_path)]) as running:
            channel = open_channel(running.grpc)
            request = health_pb2.HealthCheckRequest(service="draftwood_wire.v1.GatewayService")
            answer = await health_pb2_grpc.HealthStub(channel).Check(request)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            await channel.close(None)

    asyncio.run(main())
