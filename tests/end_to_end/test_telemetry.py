"""Traces and metrics of a real run: 20 requests on the embedded pair, seen by a collector and by scrapes."""

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from draftwood_wire import telemetry as names
from draftwood_wire.telemetry import TRACEPARENT
from draftwood_wire.tracing import FLUSH_S
from draftwood_wire.v1.gateway_service_pb2 import GatewayServiceGenerateRequest
from draftwood_wire.v1.verifier_service_pb2 import GenerateUsage
from tests.services.otlp_receiver import Manner, ReceivedSpan, Receiver, receiving
from tests.services.processes import CALL_TIMEOUT_S, Services, embedded_options, running_services, wait_for
from tests.services.requests import held_out_prompts, request
from tests.services.scraping import Scrape

REQUESTS = 20
TOKENS = 48
MODES = ("tree", "chain", "plain", "tree")
# Clocks of three processes on one machine are compared.
SLACK_S = 0.002
# A call ends for its caller once the last message is read, for its server when it hears of that.
HANG_UP_S = 0.25
GATEWAY, VERIFIER, DRAFTER = "draftwood-gateway", "draftwood-verifier", "draftwood-drafter"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What 20 requests left behind; `callers` are the clients' own contexts, as (trace, span)."""

    receiver: Receiver
    callers: list[tuple[str, str]]
    usages: list[GenerateUsage]
    http_tokens: int
    committed: int
    verifier: Scrape
    drafter: Scrape
    gateway: Scrape

    def children(self, parent: ReceivedSpan) -> dict[str, list[ReceivedSpan]]:
        """By name."""
        found: dict[str, list[ReceivedSpan]] = {}
        for span in self.receiver.spans:
            if span.trace_id == parent.trace_id and span.parent_id == parent.span_id:
                found.setdefault(span.name, []).append(span)
        return found

    def linked(self, span: ReceivedSpan, name: str) -> list[ReceivedSpan]:
        return [other for other in self.receiver.named(name) if other.key in span.links]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    options = replace(embedded_options(), metrics_host="127.0.0.1")
    with pytest.MonkeyPatch.context() as patch, receiving() as receiver:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        with running_services(options) as services:
            callers = [(f"{0xABC0000 + i:032x}", f"{i + 1:016x}") for i in range(REQUESTS)]
            prompts = held_out_prompts(REQUESTS - 4)
            with ThreadPoolExecutor(4) as pool:
                usages = list(pool.map(lambda i: over_grpc(services, prompts[i], i, callers[i]), range(REQUESTS - 4)))
                http = list(pool.map(lambda i: over_http(services, callers[i]), range(REQUESTS - 4, REQUESTS)))
            scrapes = {
                name: Scrape(service.addresses["metrics"])
                for name, service in (
                    ("verifier", services.stack.verifier),
                    ("gateway", services.stack.gateway),
                    ("drafter", services.stack.drafter),
                )
                if service is not None
            }
            committed = services.load().committed_tokens
        # The services have stopped, and with that sent what they had.
        yield Run(
            receiver=receiver,
            callers=callers,
            usages=usages,
            http_tokens=sum(http),
            committed=committed,
            **scrapes,
        )


def over_grpc(services: Services, prompt: str, index: int, caller: tuple[str, str]) -> GenerateUsage:
    message = request(prompt, MODES[index % len(MODES)], max_tokens=TOKENS)
    metadata = ((TRACEPARENT, f"00-{caller[0]}-{caller[1]}-01"),)
    answer = services.gateway.Generate(
        GatewayServiceGenerateRequest(request=message), timeout=CALL_TIMEOUT_S, metadata=metadata
    )
    return answer.usage


def over_http(services: Services, caller: tuple[str, str]) -> int:
    """Tokens of a chat that is streamed to its end."""
    body = {"model": "draftwood", "messages": [{"role": "user", "content": "Tell me of trees."}], "max_tokens": TOKENS}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    headers = {"content-type": "application/json", TRACEPARENT: f"00-{caller[0]}-{caller[1]}-01"}
    address = f"http://{services.stack.http}/v1/chat/completions"
    call = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(call, timeout=CALL_TIMEOUT_S) as reply:
        events = [line[6:] for line in reply.read().decode().splitlines() if line.startswith("data: {")]
    return int(json.loads(events[-1])["usage"]["completion_tokens"])


def generate_spans(run: Run) -> list[ReceivedSpan]:
    spans = run.receiver.named(names.SPAN_GENERATE)
    assert len(spans) == REQUESTS
    return spans


def test_a_request_is_one_trace_from_the_caller_to_its_rounds(run: Run) -> None:
    for trace_id, caller in run.callers:
        trace = [span for span in run.receiver.spans if span.trace_id == trace_id]
        roots = [span for span in trace if span.parent_id == caller]
        assert [(root.service, root.failed) for root in roots] == [(GATEWAY, False)]
        generation = single(run.children(roots[0]))
        assert generation.attributes[names.REQUEST_MODEL] == "draftwood"
        generate = single(run.children(generation))
        assert (generate.name, generate.service) == (names.SPAN_GENERATE, VERIFIER)
        phases = run.children(generate)
        assert phases.keys() == {names.SPAN_QUEUE, names.SPAN_PREFILL, names.SPAN_DECODE}
        within(generation, roots[0])
        within(generate, generation, HANG_UP_S)
        for phase in phases.values():
            within(phase[0], generate)
        queue, prefill, decode = (phases[n][0] for n in (names.SPAN_QUEUE, names.SPAN_PREFILL, names.SPAN_DECODE))
        assert queue.ended_at == prefill.started_at
        assert prefill.ended_at == decode.started_at
        # How many of its rounds are traced is up to the volume limit.
        rounds = run.children(decode).get(names.SPAN_ROUND, [])
        for span in rounds:
            within(span, decode)
        assert len(trace) == 6 + len(rounds)


def test_names_and_units_follow_the_conventions(run: Run) -> None:
    chats = [span for span in run.receiver.spans if span.name == "chat draftwood"]
    assert len(chats) == 4
    assert sum(span.attributes[names.OUTPUT_TOKENS] for span in chats) == run.http_tokens
    for span in chats:
        assert 0 < span.attributes[names.TIME_TO_FIRST_CHUNK] <= span.duration_s
        assert span.attributes[names.FINISH_REASONS] in (["length"], ["stop"])
    routes = [s.attributes for s in run.receiver.named("POST /v1/chat/completions")]
    assert [(a[names.HTTP_METHOD], a[names.HTTP_ROUTE], a[names.HTTP_STATUS]) for a in routes] == [
        ("POST", "/v1/chat/completions", 200)
    ] * 4
    used = {name for span in run.receiver.spans for name in span.attributes}
    assert used <= names.ATTRIBUTE_UNITS.keys()


def test_times_of_decode_and_of_every_round_add_up(run: Run) -> None:
    rounds = run.receiver.named(names.SPAN_ROUND)
    assert len(rounds) >= REQUESTS
    for span in (*rounds, *run.receiver.named(names.SPAN_DECODE)):
        parts = [span.attributes[n] for n in (names.WAIT_TIME, names.VERIFY_TIME, names.OVERHEAD_TIME)]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(span.duration_s, rel=0.05)
    # The three parts are told apart: a round that a draft came for waited, and most of it is not overhead.
    used = [span.attributes for span in rounds if span.attributes[names.OUTCOME] == "used"]
    assert sum(a[names.WAIT_TIME] > 0 for a in used) > len(used) / 2
    whole, overhead = sum(s.duration_s for s in rounds), sum(s.attributes[names.OVERHEAD_TIME] for s in rounds)
    assert overhead < whole / 2


def test_decode_says_how_its_tokens_came(run: Run) -> None:
    decodes = {span.parent_id: span.attributes for span in run.receiver.named(names.SPAN_DECODE)}
    for span in generate_spans(run):
        decode = decodes[span.span_id]
        tokens = 1 + decode[names.ROUNDS] + decode[names.PLAIN_STEPS] + decode[names.ACCEPTED]
        assert tokens == span.attributes[names.OUTPUT_TOKENS]
        assert decode[names.ACCEPTED] <= decode[names.NODES]


def test_rounds_link_to_their_step_and_their_draft_and_both_to_the_request(run: Run) -> None:
    requests = {span.trace_id: span for span in generate_spans(run)}
    drafted = 0
    for span in run.receiver.named(names.SPAN_ROUND):
        request_key = requests[span.trace_id].key
        (step,) = run.linked(span, names.SPAN_STEP)
        assert (step.service, step.parent_id) == (VERIFIER, "")
        assert request_key in step.links
        assert step.ended_at == span.ended_at
        assert step.attributes[names.VERIFY_TIME] == span.attributes[names.VERIFY_TIME]
        if span.attributes[names.OUTCOME] != "used":
            continue
        (draft,) = run.linked(span, names.SPAN_DRAFT)
        drafted += 1
        assert (draft.service, draft.parent_id) == (DRAFTER, "")
        assert request_key in draft.links
        assert span.started_at - SLACK_S <= draft.started_at <= draft.ended_at
        assert draft.ended_at <= span.started_at + span.attributes[names.WAIT_TIME] + SLACK_S
    assert drafted >= REQUESTS / 2
    traces = {s.trace_id for name in (names.SPAN_STEP, names.SPAN_DRAFT) for s in run.receiver.named(name)}
    assert traces.isdisjoint(requests)


def test_tokens_are_first_tokens_accepted_nodes_rounds_and_plain_steps(run: Run) -> None:
    scrape = run.verifier
    tokens = scrape.total("draftwood_verifier_tokens_total")
    first = scrape.total("draftwood_verifier_first_tokens_total")
    rounds = scrape.total("draftwood_verifier_rounds_total")
    plain = scrape.total("draftwood_verifier_plain_steps_total")
    accepted = scrape.total("draftwood_verifier_accepted_nodes_total")
    assert tokens == first + accepted + rounds + plain
    assert tokens == run.committed == sum(usage.completion_tokens for usage in run.usages) + run.http_tokens
    assert first == scrape.total("draftwood_verifier_requests_total", rpc_response_status_code="OK") == REQUESTS
    by_depth = scrape.by("draftwood_verifier_depth_accepted_total", "draftwood_depth")
    assert sum(by_depth.values()) == accepted
    assert scrape.total("draftwood_verifier_accepted_length_sum") == accepted + rounds
    assert scrape.total("draftwood_verifier_accepted_length_count") == rounds
    proposed = scrape.by("draftwood_verifier_depth_proposed_total", "draftwood_depth")
    assert all(by_depth.get(depth, 0) <= count for depth, count in proposed.items())
    assert proposed["1"] == rounds
    reasons = scrape.by("draftwood_verifier_plain_steps_total", "draftwood_reason")
    assert reasons["off"] == 4 * (TOKENS - 1)
    assert reasons["no_drafter"] == reasons["undraftable"] == 0


def test_the_other_metrics_are_there_and_plausible(run: Run) -> None:
    verifier, drafter, gateway = run.verifier, run.drafter, run.gateway
    count = "draftwood_gateway_requests_total"
    chats = {"draftwood_route": "/v1/chat/completions", "draftwood_status": "200"}
    assert gateway.total(count, **chats) == 4
    assert gateway.total(count, draftwood_status="OK") == REQUESTS - 4
    assert gateway.total("draftwood_gateway_in_flight") == gateway.total("draftwood_gateway_resumes_total") == 0
    assert gateway.total("draftwood_gateway_time_to_first_token_seconds_count") == REQUESTS
    assert verifier.total("draftwood_verifier_active_requests") == 0
    assert verifier.total("draftwood_verifier_kv_pages", draftwood_state="used") == 0
    assert verifier.total("draftwood_verifier_drafters") == drafter.total("draftwood_drafter_connected") == 1
    assert verifier.total("draftwood_verifier_drafted_sessions") == 0
    assert verifier.total("gen_ai_server_time_to_first_token_seconds_count") == REQUESTS
    assert verifier.total("draftwood_verifier_draft_round_trip_seconds_sum") > 0
    assert all(
        verifier.total("draftwood_verifier_speculate_bytes_total", draftwood_direction=d) > 1000
        for d in ("sent", "received")
    )
    used = verifier.total("draftwood_verifier_proposals_total", draftwood_outcome="used")
    assert 0 < used <= verifier.total("draftwood_verifier_rounds_total")
    assert drafter.total("draftwood_drafter_draft_batch_sum") >= used
    assert drafter.total("draftwood_drafter_nodes_total") >= verifier.total("draftwood_verifier_verified_nodes_total")
    assert drafter.total("draftwood_drafter_sessions") == 0
    for scrape in (verifier, drafter, gateway):
        assert scrape.total("draftwood_telemetry_records_dropped_total") == 0


@pytest.mark.parametrize("manner", [Manner.HANGS, Manner.REFUSES])
def test_no_service_minds_a_bad_collector(manner: Manner) -> None:
    """All three serve as they should and end when told to; a collector that hangs is the slowest there can be."""
    prompts = held_out_prompts(4)
    with pytest.MonkeyPatch.context() as patch, receiving(manner) as receiver:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with running_services(replace(embedded_options(), metrics_host="127.0.0.1")) as services:
            asked = {
                mode: [request(prompt, mode, max_tokens=TOKENS) for prompt in prompts] for mode in ("tree", "plain")
            }
            texts = {mode: [a.text for a in services.generate_together(asked[mode])] for mode in asked}
            stack = services.stack
            assert stack.drafter is not None
            members = (stack.gateway, stack.drafter, stack.verifier)
            wait_for(lambda: {GATEWAY, VERIFIER, DRAFTER} <= receiver.callers, "every service has tried to send spans")
            for service in members:
                assert Scrape(service.addresses["metrics"]).total("draftwood_telemetry_records_dropped_total") == 0
            stopping_at = time.monotonic()
        assert time.monotonic() - stopping_at < len(members) * (FLUSH_S + 2)
    assert texts["tree"] == texts["plain"]
    assert [service.exit_code() for service in members] == [0, 0, 0]


def single(children: dict[str, list[ReceivedSpan]]) -> ReceivedSpan:
    (span,) = [span for spans in children.values() for span in spans]
    return span


def within(child: ReceivedSpan, parent: ReceivedSpan, after_s: float = SLACK_S) -> None:
    assert parent.started_at - SLACK_S <= child.started_at <= child.ended_at <= parent.ended_at + after_s
