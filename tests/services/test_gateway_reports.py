"""Round reports through both front ends, and the playground's files."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from draftwood_wire.transport import open_channel
from draftwood_wire.v1 import gateway_service_pb2 as pb
from draftwood_wire.v1.gateway_service_pb2_grpc import GatewayServiceStub
from tests.services.fake_verifier import FakeVerifier
from tests.services.gateway_harness import Stage, continuing, make_tokenizer, stage

# The tiny tokenizer has a token for each byte of the emoji: their characters are complete only some messages later.
TEXT = "the tree 日本語 🙂 accepts the draft"
ASKED = {"prompt": "hello", "max_tokens": 200, "draftwood": {"rounds": True}}


def fake(folder: Path, size: int = 3, **options: Any) -> FakeVerifier:
    tokenizer = make_tokenizer(folder)
    script = continuing([*tokenizer.encode(TEXT).ids, 0], len(tokenizer.encode("hello").ids), size)
    return FakeVerifier(script=script, vocab_size=tokenizer.get_vocab_size(), eos_token_ids=(0,), **options)


async def streamed(running: Stage, **body: Any) -> list[dict[str, Any]]:
    """The choices of a stream, in order."""
    async with httpx.AsyncClient(base_url=running.http) as client:
        answer = await client.post("/v1/completions", json={**ASKED, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    chunks = [json.loads(line[len("data: ") :]) for line in answer.text.split("\n\n")[:-2]]
    return [choice for chunk in chunks for choice in chunk["choices"]]


def joined(choices: list[dict[str, Any]]) -> dict[str, list[Any]]:
    parts = [choice["draftwood"] for choice in choices]
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def pieces(text: str, ends: list[int]) -> list[str]:
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def test_a_stream_carries_ids_ends_and_rounds(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path, [fake(tmp_path)]) as running:
            ids = [*running.tokenizer.encode(TEXT).ids, 0]
            choices = await streamed(running)
            text, told = "".join(choice["text"] for choice in choices), joined(choices)
            assert text == TEXT
            assert told["token_ids"] == ids == [token for entry in told["rounds"] for token in entry["token_ids"]]
            assert "".join(pieces(text, told["text_ends"])) == text
            assert told["text_ends"][-1] == len(text), "ends count characters, not bytes or UTF-16"
            smile = pieces(text, told["text_ends"]).index("🙂")
            assert pieces(text, told["text_ends"])[smile + 1 : smile + 4] == ["", "", ""]
            first, second = told["rounds"][:2]
            assert (first["kind"], first["tree"]["token_ids"], first["path"]) == ("prefill", [], [0, 1, 2])
            assert second == {
                "round": 1,
                "kind": "speculative",
                "base_len": len(running.tokenizer.encode("hello").ids) + 3,
                "tree": {
                    "token_ids": [*ids[3:5], 5],
                    "parents": [0, 1, 2],
                    "log_probs": [-0.5, -1.0, -1.5],
                    "texts": ["\\xe6", "\\x97", "$"],
                },
                "path": [0, 1, 2],
                "token_ids": ids[3:6],
                "texts": ["\\xe6", "\\x97", "\\xa5"],
                "draft_wait_ms": 2.5,
                "verify_ms": 7.5,
            }
            texts = [one for entry in told["rounds"] for one in entry["texts"]]
            assert texts[smile : smile + 4] == ["\\xf0", "\\x9f", "\\x99", "\\x82"]
            assert texts[-1] == "<eos>"

    asyncio.run(main())


def test_rounds_whose_text_is_held_back_come_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path, [fake(tmp_path, size=1)]) as running:
            ids = [*running.tokenizer.encode(TEXT).ids, 0]
            choices = await streamed(running)
            assert joined(choices)["token_ids"] == ids
            assert [len(choice["draftwood"]["rounds"]) for choice in choices] == [1] * len(ids)
            assert any(not choice["text"] and not choice["draftwood"]["token_ids"] for choice in choices)

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_whole_answers_carry_the_same_and_only_when_asked(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        verifier = fake(tmp_path)
        async with stage(tmp_path, [verifier]) as running, httpx.AsyncClient(base_url=running.http) as client:
            asked = {**ASKED, "messages": [{"role": "user", "content": "hi"}]}
            (choice,) = (await client.post(path, json=asked)).json()["choices"]
            told = choice["draftwood"]
            assert told["token_ids"] == [token for entry in told["rounds"] for token in entry["token_ids"]] != []
            del asked["draftwood"]
            (choice,) = (await client.post(path, json=asked)).json()["choices"]
            assert "draftwood" not in choice
            wrong = await client.post(path, json={**asked, "draftwood": {"rounds": "maybe"}})
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "draftwood.rounds")
            answer = await client.post(path, json={**asked, "stream": True})
            assert '"draftwood"' not in answer.text
        assert [call.request.report_rounds for call in verifier.calls] == [True, False, False]

    asyncio.run(main())


def test_a_stop_string_ends_the_ids_inside_the_last_report(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path, [fake(tmp_path)]) as running:
            choices = await streamed(running, stop="cepts")
            text, told = "".join(choice["text"] for choice in choices), joined(choices)
            reported = [token for entry in told["rounds"] for token in entry["token_ids"]]
            assert text == TEXT[: TEXT.index("cepts")]
            assert choices[-1]["finish_reason"] == "stop"
            assert reported[: len(told["token_ids"])] == told["token_ids"]
            assert 0 <= len(reported) - len(told["token_ids"]) < len(told["rounds"][-1]["token_ids"])
            assert "".join(pieces(text, told["text_ends"])) == text

    asyncio.run(main())


def test_reports_go_on_with_another_verifier(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = fake(tmp_path), fake(tmp_path)
        second.breaks = first.breaks  # the first call breaks, whichever verifier is ready for it
        first.breaks.append((2, grpc.StatusCode.UNAVAILABLE))
        async with stage(tmp_path, [first, second]) as running:
            choices = await streamed(running)
            told = joined(choices)
            ids = [*running.tokenizer.encode(TEXT).ids, 0]
        assert told["token_ids"] == ids == [token for entry in told["rounds"] for token in entry["token_ids"]]
        starts = [entry["base_len"] for entry in told["rounds"]]
        assert starts == [starts[0] + 3 * index for index in range(len(starts))]
        assert [entry["kind"] for entry in told["rounds"][:4]] == ["prefill", "speculative", "prefill", "speculative"]

    asyncio.run(main())


def test_the_grpc_face_says_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path, [fake(tmp_path)]) as running:
            told = joined(await streamed(running))
            channel = open_channel(running.grpc)
            stub = GatewayServiceStub(channel)
            request = pb.TextRequest(prompt="hello", max_tokens=200, report_rounds=True)
            whole = await stub.Generate(pb.GatewayServiceGenerateRequest(request=request))
            messages = [m async for m in stub.GenerateStream(pb.GenerateStreamRequest(request=request))]
            request.report_rounds = False
            without = await stub.Generate(pb.GatewayServiceGenerateRequest(request=request))
            await channel.close()
        assert list(whole.rounds) == [entry for message in messages for entry in message.rounds]
        assert list(whole.text_ends) == [end for message in messages for end in message.text_ends] == told["text_ends"]
        for entry, body in zip(whole.rounds, told["rounds"], strict=True):
            report = entry.report
            assert (report.round, report.base_len) == (body["round"], body["base_len"])
            assert (list(report.path), list(report.token_ids)) == (body["path"], body["token_ids"])
            assert (report.draft_wait_ms, report.verify_ms) == (body["draft_wait_ms"], body["verify_ms"])
            tree = {name: list(getattr(report.tree, name)) for name in ("token_ids", "parents", "log_probs")}
            assert {**tree, "texts": list(entry.node_texts)} == body["tree"]
            assert list(entry.token_texts) == body["texts"]
        assert not without.rounds
        assert not without.text_ends

    asyncio.run(main())


def test_the_playground_is_served_with_a_strict_policy(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            stage(tmp_path, [fake(tmp_path)]) as running,
            httpx.AsyncClient(base_url=running.http, follow_redirects=True) as client,
        ):
            page = await client.get("/")
            assert str(page.url) == str((await client.get("/playground")).url) == running.http + "/playground/"
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            policy = page.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; ")
            assert "unsafe" not in policy
            assert "http" not in policy
            for name, kind in (("page.js", "text/javascript"), ("style.css", "text/css"), ("icon.svg", "image/svg")):
                file = await client.get(f"/playground/{name}")
                assert (file.status_code, file.headers["content-type"].startswith(kind)) == (200, True)
                assert file.headers["content-security-policy"] == policy
            for name in ("__init__.py", "../app.py", "nothing.js"):
                assert (await client.get(f"/playground/{name}")).status_code == 404

    asyncio.run(main())
