"""The official client, and raw HTTP where it is too polite."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest

from tests.services.fake_verifier import FakeVerifier
from tests.services.gateway_harness import Stage, gateway, make_tokenizer, saying, stage

TEXT = "the tree 日本語 🙂 accepts the draft"


def fake(folder: Path, text: str = TEXT, size: int = 2, **options: Any) -> FakeVerifier:
    tokenizer = make_tokenizer(folder)
    ids = tokenizer.encode(text).ids
    return FakeVerifier(
        script=saying([*ids, 0], size), vocab_size=tokenizer.get_vocab_size(), eos_token_ids=(0,), **options
    )


def client_of(running: Stage) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=running.http + "/v1", api_key="none", max_retries=0)


def test_completions_whole_and_streamed(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path, size=1)
        async with stage(tmp_path, [verifier]) as running, client_of(running) as client:
            answer = await client.completions.create(model="tiny", prompt="hello", max_tokens=200, seed=-1)
            assert answer.choices[0].text == TEXT
            assert answer.choices[0].finish_reason == "stop"
            ids = running.tokenizer.encode(TEXT).ids
            assert answer.usage.completion_tokens == len(ids) + 1
            assert answer.usage.prompt_tokens_details.cached_tokens == 3
            assert answer.usage.draftwood["rounds"] == len(ids)
            assert answer.usage.draftwood["accepted_length"] == 1.0
            chunks = [
                chunk
                async for chunk in await client.completions.create(
                    model="tiny", prompt="hello", max_tokens=200, stream=True, stream_options={"include_usage": True}
                )
            ]
            assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == TEXT
            assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
            assert chunks[-1].choices == []
            assert chunks[-1].usage == answer.usage
            assert all(chunk.usage is None for chunk in chunks[:-1])
        request = verifier.calls[0].request
        assert list(request.prompt_token_ids) == running.tokenizer.encode("hello").ids
        assert (request.sampling.temperature, request.sampling.seed) == (1.0, 2**64 - 1)

    asyncio.run(main())


def test_chat_whole_and_streamed(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path)
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        async with stage(tmp_path, [verifier]) as running, client_of(running) as client:
            answer = await client.chat.completions.create(
                model="tiny", messages=messages, extra_body={"speculation": "chain", "node_limit": 5, "top_k": 3}
            )
            assert answer.choices[0].message.content == TEXT
            assert answer.choices[0].message.role == "assistant"
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model="tiny", messages=messages, stream=True, max_completion_tokens=4
                )
            ]
            assert chunks[0].choices[0].delta.role == "assistant"
            assert chunks[-1].choices[0].finish_reason == "length"
            expected = running.tokenizer.decode(running.tokenizer.encode(TEXT).ids[:4])
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
        first, second = (call.request for call in verifier.calls)
        assert list(first.prompt_token_ids) == running.tokenizer.encode("<|user|>user:hi<|user|>").ids
        assert (first.speculation.mode, first.speculation.node_limit, first.sampling.top_k) == (2, 5, 3)
        assert not first.HasField("max_tokens")
        assert second.max_tokens == 4

    asyncio.run(main())


def test_several_prompts_are_several_choices(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path, [fake(tmp_path)]) as running, client_of(running) as client:
            for prompts in (["hello", "tree"], [[5, 6], [7]]):
                answer = await client.completions.create(model="tiny", prompt=prompts, max_tokens=3)
                assert [choice.index for choice in answer.choices] == [0, 1]
                assert answer.usage.completion_tokens == 6
                texts = {0: "", 1: ""}
                async for chunk in await client.completions.create(
                    model="tiny", prompt=prompts, max_tokens=3, stream=True
                ):
                    texts[chunk.choices[0].index] += chunk.choices[0].text
                assert list(texts.values()) == [choice.text for choice in answer.choices]

    asyncio.run(main())


def test_stop_string_ends_everything_and_cancels_the_call(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path, size=1)
        async with stage(tmp_path, [verifier]) as running, client_of(running) as client:
            answer = await client.completions.create(model="tiny", prompt="hello", max_tokens=200, stop=["語", "🙂"])
            ids = running.tokenizer.encode("the tree 日本語").ids
            assert answer.choices[0].text == "the tree 日本"
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage.completion_tokens == len(ids)
            streamed = await client.completions.create(
                model="tiny", prompt="hello", max_tokens=200, stop=["語", "🙂"], stream=True
            )
            assert "".join([chunk.choices[0].text async for chunk in streamed]) == "the tree 日本"
            await asyncio.wait_for(verifier.calls[0].ended.wait(), 5)

    asyncio.run(main())


def test_a_held_call_is_cancelled_by_its_stop_string(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path, size=200, hold=True)
        async with stage(tmp_path, [verifier]) as running, client_of(running) as client:
            answer = await client.completions.create(model="tiny", prompt="hello", max_tokens=200, stop="tree")
            assert answer.choices[0].text == "the "
            await asyncio.wait_for(verifier.calls[0].ended.wait(), 5)
            assert verifier.calls[0].cancelled

    asyncio.run(main())


BAD_BODIES: list[tuple[dict[str, Any] | str, int, str]] = [
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": []}, 400, "prompt"),
    ({}, 400, "prompt"),
    ({"prompt": [[1], []]}, 400, "prompt"),
    ({"prompt": "x " * 300}, 400, "prompt"),
    ({"prompt": [1, 99999]}, 400, "prompt"),
    ({"prompt": [1, -1]}, 400, "prompt"),
    ({"prompt": [1, "a"]}, 400, "prompt"),
    ('{"prompt": "\\ud800"}', 400, "prompt"),
    ({"prompt": "a", "max_tokens": -1}, 400, "max_tokens"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    ({"prompt": "a", "max_tokens": 256}, 400, "max_tokens"),
    ({"prompt": "a", "max_tokens": "many"}, 400, "max_tokens"),
    ('{"prompt": "a", "temperature": NaN}', 400, "temperature"),
    ('{"prompt": "a", "temperature": Infinity}', 400, "temperature"),
    ({"prompt": "a", "temperature": -0.5}, 400, "temperature"),
    ({"prompt": "a", "top_p": 0}, 400, "top_p"),
    ({"prompt": "a", "top_p": 1.5}, 400, "top_p"),
    ({"prompt": "a", "top_k": -2}, 400, "top_k"),
    ({"prompt": "a", "min_p": 2}, 400, "min_p"),
    ({"prompt": "a", "seed": 1 << 64}, 400, "seed"),
    ({"prompt": "a", "stop": [""]}, 400, "stop"),
    ({"prompt": "a", "stop": ["b"] * 65}, 400, "stop"),
    ({"prompt": "a", "stop_token_ids": [4096]}, 400, "stop_token_ids"),
    ({"prompt": "a", "speculation": "maybe"}, 400, "speculation"),
    ({"prompt": "a", "node_limit": 257}, 400, "node_limit"),
    ({"prompt": "a", "n": 2}, 400, "n"),
    ({"prompt": "a", "best_of": 2}, 400, "best_of"),
    ({"prompt": "a", "logprobs": 0}, 400, "logprobs"),
    ({"prompt": "a", "echo": True}, 400, "echo"),
    ({"prompt": "a", "suffix": "b"}, 400, "suffix"),
    ({"prompt": "a", "logit_bias": {"1": 2}}, 400, "logit_bias"),
    ({"prompt": "a", "frequency_penalty": 0.1}, 400, "frequency_penalty"),
    ({"prompt": "a", "presence_penalty": -1}, 400, "presence_penalty"),
    ({"prompt": "a", "min_tokens": 3}, 400, "min_tokens"),
    ({"prompt": "a", "response_format": {"type": "json_object"}}, 400, "response_format"),
    ({"prompt": "a", "model": "gpt-4"}, 404, "model"),
    ("{", 400, "body"),
    ("[1]", 400, "body"),
    ("\xff", 400, "body"),
    ("[" * 100_000, 400, "body"),
]


def test_bad_input_is_refused_by_name_and_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path)
        async with (
            stage(tmp_path, [verifier]) as running,
            httpx.AsyncClient(base_url=running.http, trust_env=False) as http,
        ):
            for body, status, param in BAD_BODIES:
                content = body.encode("latin-1") if isinstance(body, str) else json.dumps(body)
                answer = await http.post("/v1/completions", content=content)
                assert answer.status_code == status, (body, answer.text)
                error = answer.json()["error"]
                assert error["param"] == param, (body, error)
                assert error["message"].startswith(param)
            chat = {"messages": [], "model": "tiny"}
            assert (await http.post("/v1/chat/completions", json=chat)).json()["error"]["param"] == "messages"
            tools = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}
            assert (await http.post("/v1/chat/completions", json=tools)).json()["error"]["param"] == "tools"
            assert (await http.get("/v1/completions")).status_code == 405
            assert (await http.get("/v1/nothing")).json()["error"]["code"] is None
            large = await http.post("/v1/completions", content=b"x" * (17 << 20))
            assert large.status_code == 413
            fine = {"prompt": "a", "n": 1, "echo": False, "frequency_penalty": 0, "user": "me", "logprobs": None}
            assert (await http.post("/v1/completions", json=fine)).status_code == 200
            assert (await http.post("/v1/completions", json={"prompt": [5] * 250})).status_code == 200
        assert [call.request.max_tokens for call in verifier.calls] == [16, 6]

    asyncio.run(main())


def test_errors_are_the_official_clients_own(tmp_path: Path) -> None:
    async def main() -> None:
        full = [(0, grpc.StatusCode.RESOURCE_EXHAUSTED)] * 2
        verifier = fake(tmp_path, breaks=full)
        async with stage(tmp_path, [verifier]) as running, client_of(running) as client:
            with pytest.raises(openai.RateLimitError):
                await client.completions.create(model="tiny", prompt="a")
            with pytest.raises(openai.RateLimitError):
                await client.completions.create(model="tiny", prompt="a", stream=True)
            with pytest.raises(openai.BadRequestError, match="temperature"):
                await client.completions.create(model="tiny", prompt="a", temperature=-1)
            with pytest.raises(openai.NotFoundError, match="nope"):
                await client.completions.create(model="nope", prompt="a")
            assert [model.id async for model in client.models.list()] == ["tiny"]
            assert (await client.models.retrieve("tiny")).id == "tiny"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("nope")

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_client_that_leaves_cancels_the_verifiers_call(tmp_path: Path, stream: bool, started: bool) -> None:
    async def main() -> None:
        verifier = fake(tmp_path, hold=True)
        if not started:
            verifier.script = lambda _: [[], [5]]
        async with stage(tmp_path, [verifier]) as running:
            async with client_of(running) as client:
                task = asyncio.ensure_future(_read(client, stream))
                await asyncio.wait_for(verifier.called.wait(), 5)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.wait_for(verifier.calls[0].ended.wait(), 5)
            assert verifier.calls[0].cancelled

    asyncio.run(main())


async def _read(client: openai.AsyncOpenAI, stream: bool) -> None:
    if stream:
        async for _ in await client.completions.create(model="tiny", prompt="hello", stream=True):
            pass
    else:
        await client.completions.create(model="tiny", prompt="hello")


def test_healthz_follows_the_verifiers(tmp_path: Path) -> None:
    async def main() -> None:
        make_tokenizer(tmp_path)
        async with (
            gateway(tmp_path, ["127.0.0.1:1"], start_wait_s=0) as running,
            httpx.AsyncClient(base_url=running.http, trust_env=False) as http,
        ):
            assert (await http.get("/healthz")).status_code == 503
            answer = await http.post("/v1/completions", json={"prompt": "a"})
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
        async with (
            stage(tmp_path, [fake(tmp_path)]) as running,
            httpx.AsyncClient(base_url=running.http, trust_env=False) as http,
        ):
            assert (await http.get("/healthz")).status_code == 200

    asyncio.run(main())


def test_traceparent_travels(tmp_path: Path) -> None:
    async def main() -> None:
        verifier = fake(tmp_path)
        header = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        async with stage(tmp_path, [verifier]) as running, httpx.AsyncClient(trust_env=False) as http:
            await http.post(running.http + "/v1/completions", json={"prompt": "a"}, headers=header)
            malformed = {"traceparent": b"\xe9"}
            answer = await http.post(running.http + "/v1/completions", json={"prompt": "a"}, headers=malformed)
            assert answer.status_code == 200
        assert "traceparent" not in verifier.calls[1].metadata
        assert verifier.calls[0].metadata["traceparent"] == header["traceparent"]

    asyncio.run(main())
