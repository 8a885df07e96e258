"""A verifier's death costs a client nothing."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftwood_client import AsyncClient
from draftwood_wire.errors import Unavailable
from tests.services.fake_verifier import FakeVerifier, serving
from tests.services.gateway_harness import continuing, gateway, make_tokenizer, stage

TEXT = "the tree 🙂 accepts the draft, the draft proposes"


def fakes(folder: Path, count: int, **options: Any) -> list[FakeVerifier]:
    """Verifiers that go on with the same text wherever a prompt of "hello" has got to."""
    tokenizer = make_tokenizer(folder)
    script = continuing([*tokenizer.encode(TEXT).ids, 0], len(tokenizer.encode("hello").ids))
    size = tokenizer.get_vocab_size()
    return [FakeVerifier(script=script, vocab_size=size, eos_token_ids=(0,), **options) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("messages", [0, 1, 3])
@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
def test_a_broken_stream_goes_on(tmp_path: Path, count: int, messages: int, status: grpc.StatusCode) -> None:
    async def main() -> None:
        verifiers = fakes(tmp_path, count)
        for verifier in verifiers:
            verifier.breaks = verifiers[0].breaks  # the first call breaks, whichever verifier is ready for it
        verifiers[0].breaks.append((messages, status))
        async with stage(tmp_path, verifiers) as running, AsyncClient(running.grpc) as client:
            result = await client.generate("hello", temperature=0.8, max_tokens=100)
            ids = [*running.tokenizer.encode(TEXT).ids, 0]
            prompt = running.tokenizer.encode("hello").ids
        assert (result.text, list(result.token_ids)) == (TEXT, ids)
        assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (len(prompt), len(ids))
        calls = [call.request for verifier in verifiers for call in verifier.calls]
        second = max(calls, key=lambda request: len(request.prompt_token_ids))
        assert list(second.prompt_token_ids) == prompt + ids[: 2 * messages]
        assert second.max_tokens == 100 - 2 * messages
        if messages:
            assert second.sampling.seed == 77
        assert [len(verifier.calls) for verifier in verifiers] == [2 // count] * count

    asyncio.run(main())


def test_a_killed_verifier_that_comes_back_is_used_again(tmp_path: Path) -> None:
    async def main() -> None:
        (held,) = fakes(tmp_path, 1, hold=True)
        (healthy,) = fakes(tmp_path, 1)
        async with contextlib.AsyncExitStack() as first:
            address, _ = await first.enter_async_context(serving(held))
            async with gateway(tmp_path, [address]) as running, AsyncClient(running.grpc) as client:
                stream = client.stream("hello", temperature=0.8)
                text = (await anext(stream)).text
                await first.aclose()
                async with serving(healthy, address):
                    text += "".join([chunk.text async for chunk in stream])
        assert text == TEXT
        assert healthy.calls[0].request.sampling.seed == 77

    asyncio.run(main())


def test_endless_failures_end(tmp_path: Path) -> None:
    async def main() -> None:
        verifiers = fakes(tmp_path, 2)
        for verifier in verifiers:
            verifier.breaks += [(0, grpc.StatusCode.UNAVAILABLE)] * 5
        async with stage(tmp_path, verifiers) as running, AsyncClient(running.grpc) as client:
            with pytest.raises(Unavailable):
                await client.generate("hello")
        assert sum(len(verifier.calls) for verifier in verifiers) == 5

    asyncio.run(main())


def test_a_full_verifier_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        verifiers = fakes(tmp_path, 2)
        verifiers[1].breaks = verifiers[0].breaks  # the first call finds it full, whichever verifier is ready for it
        verifiers[0].breaks.append((0, grpc.StatusCode.RESOURCE_EXHAUSTED))
        async with stage(tmp_path, verifiers) as running, AsyncClient(running.grpc) as client:
            assert (await client.generate("hello")).text == TEXT

    asyncio.run(main())


def test_load_is_spread(tmp_path: Path) -> None:
    async def main() -> None:
        verifiers = fakes(tmp_path, 2, hold=True)
        async with stage(tmp_path, verifiers) as running, AsyncClient(running.grpc) as client:
            streams = [client.stream("hello") for _ in range(4)]
            for stream in streams:
                await anext(stream)
            assert [len(verifier.calls) for verifier in verifiers] == [2, 2]
            for stream in streams:
                await stream.aclose()

    asyncio.run(main())


def test_a_verifier_with_another_tokenizer_is_not_used(tmp_path: Path) -> None:
    async def main() -> None:
        wrong, right = fakes(tmp_path, 2)
        wrong.fingerprint = "0" * 64
        async with stage(tmp_path, [wrong, right]) as running, AsyncClient(running.grpc) as client:
            await client.generate("hello")
            await client.generate("hello")
        assert (len(wrong.calls), len(right.calls)) == (0, 2)

    asyncio.run(main())
