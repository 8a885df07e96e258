"""What the gateway says of its requests: statuses, resumes, and one generation span whatever broke on the way."""

import asyncio
from pathlib import Path

import grpc
import httpx
import pytest

from draftwood_client import AsyncClient
from draftwood_wire import telemetry as names
from draftwood_wire.errors import InvalidRequest
from draftwood_wire.telemetry import TRACEPARENT
from tests.services.fake_verifier import FakeVerifier
from tests.services.gateway_harness import continuing, make_tokenizer, stage
from tests.services.otlp_receiver import receiving
from tests.services.scraping import Scrape

TEXT = "the tree accepts the draft, the draft proposes"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def fakes(folder: Path, count: int) -> list[FakeVerifier]:
    tokenizer = make_tokenizer(folder)
    script = continuing([*tokenizer.encode(TEXT).ids, 0], len(tokenizer.encode("hello").ids))
    size = tokenizer.get_vocab_size()
    return [FakeVerifier(script=script, vocab_size=size, eos_token_ids=(0,)) for _ in range(count)]


def test_requests_are_counted_by_route_and_status(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path, fakes(tmp_path, 1), metrics="127.0.0.1:0") as running:
            async with httpx.AsyncClient(base_url=running.http) as http, AsyncClient(running.grpc) as client:
                body = {"model": "tiny", "prompt": "hello"}
                assert (await http.post("/v1/completions", json=body)).status_code == 200
                assert (await http.post("/v1/completions", json={**body, "top_p": 7})).status_code == 400
                assert (await http.get("/no/such/path")).status_code == 404
                await client.generate("hello")
                with pytest.raises(InvalidRequest, match="max_tokens"):
                    await client.generate("hello", max_tokens=100_000)
            scrape = await asyncio.to_thread(Scrape, running.metrics)
        count, route, status = "draftwood_gateway_requests_total", "draftwood_route", "draftwood_status"
        method = "draftwood_wire.v1.GatewayService/Generate"
        wanted = {("/v1/completions", "200"), ("/v1/completions", "400"), ("other", "404"), (method, "OK")}
        for path, code in wanted | {(method, "INVALID_ARGUMENT")}:
            assert scrape.total(count, **{route: path, status: code}) == 1
        assert scrape.total(count) == 5
        assert scrape.total("draftwood_gateway_in_flight") == 0
        assert scrape.total("draftwood_gateway_verifiers") == 1

    asyncio.run(main())


def test_a_resumed_stream_is_one_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        verifiers = fakes(tmp_path, 1)
        verifiers[0].breaks.append((2, grpc.StatusCode.UNAVAILABLE))
        async with stage(tmp_path, verifiers, metrics="127.0.0.1:0") as running:
            async with AsyncClient(running.grpc) as client:
                assert (await client.generate("hello", traceparent=CALLER)).text == TEXT
            scrape = await asyncio.to_thread(Scrape, running.metrics)
        assert scrape.total("draftwood_gateway_resumes_total") == 1
        sent.update(str(call.metadata[TRACEPARENT]) for verifier in verifiers for call in verifier.calls)

    sent: set[str] = set()
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        asyncio.run(main())
        (generation,) = receiver.named("text_completion tiny")
        (server,) = receiver.named("draftwood_wire.v1.GatewayService/Generate")
    assert generation.attributes[names.RESUMES] == 1
    assert (generation.parent_id, server.parent_id) == (server.span_id, CALLER[36:52])
    assert generation.trace_id == server.trace_id == CALLER[3:35]
    # Both attempts hang below the one generation.
    assert sent == {f"00-{generation.trace_id}-{generation.span_id}-01"}


@pytest.mark.parametrize("given", [CALLER, "nonsense", ""])
def test_without_traces_the_caller_s_context_goes_on_if_it_is_one(tmp_path: Path, given: str) -> None:
    async def main() -> None:
        (verifier,) = fakes(tmp_path, 1)
        async with stage(tmp_path, [verifier]) as running, httpx.AsyncClient(base_url=running.http) as http:
            body = {"model": "tiny", "prompt": "hello"}
            await http.post("/v1/completions", json=body, headers={TRACEPARENT: given} if given else {})
        assert verifier.calls[0].metadata.get(TRACEPARENT, "") == (given if given == CALLER else "")

    asyncio.run(main())
