"""A collector that is away, hangs or refuses costs no request anything, and spans stay few under any load."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from draftwood_verifier.telemetry.observer import VerifierTelemetry
from draftwood_wire import telemetry as names
from draftwood_wire.trace_context import TraceContext
from draftwood_wire.tracing import FLUSH_S, FinishedSpan, Tracing
from tests.services.otlp_receiver import Manner, Receiver, receiving
from tests.services.scraping import Scrape
from tests.services.verifier_harness import Harness, oracle_script, request, run, serving, silent

PROMPT = [3, 0, 5, 0, 7, 1]
LENGTH = 24
DRAIN_S = 5.0
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@contextlib.contextmanager
def collector(manner: Manner | None, patch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Named by the environment; None: nobody listens where it should be. Spans are sent every 50 ms."""
    patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with receiving(manner or Manner.TAKES) as receiver:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint if manner else "http://127.0.0.1:1")
        yield receiver


async def load(harness: Harness, requests: int) -> None:
    """Eight at a time, each compared with plain decoding."""
    plain = harness.target.plain(PROMPT, LENGTH)

    async def one() -> None:
        assert (await harness.generate(PROMPT, LENGTH)).tokens == plain

    for _ in range(requests // 8):
        await asyncio.gather(*(one() for _ in range(8)))
    await harness.idle()


async def scraped(harness: Harness) -> Scrape:
    return await asyncio.to_thread(Scrape, harness.service.telemetry.metrics_address)


def held(harness: Harness) -> int:
    """Sessions that telemetry still remembers."""
    observer: Any = harness.service.telemetry
    return len(observer._histories._sessions) + len(observer._spans._decodes) + len(observer._spans._drafts)


@pytest.mark.parametrize("manner", [None, Manner.HANGS, Manner.REFUSES], ids=["away", "hangs", "refuses"])
def test_a_bad_collector_is_nobodys_problem(manner: Manner | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(receiver: Receiver) -> None:
        async with serving(metrics="127.0.0.1:0", drain_s=DRAIN_S, pages=256) as harness:
            async with harness.drafter(oracle_script(harness.target)):
                await load(harness, 160)
            while held(harness):  # the last handlers end after their clients
                await scraped(harness)
            scrape = await scraped(harness)
            assert scrape.total("draftwood_telemetry_records_dropped_total") == 0
            assert scrape.total("draftwood_verifier_first_tokens_total") == 160
            if manner is not None:
                assert receiver.exports > 0
            stopping_at = time.monotonic()
        assert time.monotonic() - stopping_at < FLUSH_S + 1.0 < DRAIN_S
        assert not {"telemetry", "OtelBatchSpanRecordProcessor"} & {t.name for t in threading.enumerate()}

    with collector(manner, monkeypatch) as receiver:
        run(body(receiver))


def test_spans_stay_within_the_volume_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(receiver: Receiver) -> None:
        started_at = time.monotonic()
        async with serving(metrics="127.0.0.1:0", pages=256) as harness:
            async with harness.drafter(oracle_script(harness.target)):
                await load(harness, 400)
            refused = (await scraped(harness)).total("draftwood_telemetry_spans_refused_total")
        # Nine tenths of the limit at once, then a tenth of it a second.
        allowed = names.SPANS_PER_SECOND * (0.9 + 0.1 * (time.monotonic() - started_at))
        assert refused > 0
        assert 0 < len(receiver.spans) <= allowed
        # What there is, is whole: a request has all its spans or none, and a round its step.
        for name in (names.SPAN_QUEUE, names.SPAN_PREFILL, names.SPAN_DECODE):
            assert len(receiver.named(name)) == len(receiver.named(names.SPAN_GENERATE))
        steps = {span.key for span in receiver.named(names.SPAN_STEP)}
        assert all(span.links[0] in steps for span in receiver.named(names.SPAN_ROUND))

    with collector(Manner.TAKES, monkeypatch) as receiver:
        run(body(receiver))


def test_what_ends_together_stays_within_the_volume_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request was let in at its own time; a verifier that goes away ends all of them at once."""
    with collector(Manner.TAKES, monkeypatch) as receiver:
        started_at = time.monotonic()
        tracing = Tracing("test", spans_per_second=40)
        for _ in range(50):
            request_context = TraceContext.root(sampled=True)
            tracing.emit(
                *(
                    FinishedSpan(name=name, context=context, started_at=started_at, ended_at=started_at)
                    for name, context in (("whole", request_context), ("part", request_context.child()))
                )
            )
        allowed = 36 + 4 * (time.monotonic() - started_at)
        tracing.close()
    assert 34 <= len(receiver.spans) <= allowed
    assert tracing.refused == 100 - len(receiver.spans)
    assert {s.trace_id for s in receiver.named("whole")} == {s.trace_id for s in receiver.named("part")}


def test_the_caller_decides_whether_a_request_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(oracle_script(harness.target)) as drafter:
            call = harness.stub.Generate(request(PROMPT, LENGTH), metadata=(("traceparent", UNSAMPLED),))
            assert [message async for message in call]
            session = next(iter(drafter.sessions.values()))
            assert session.opened.traceparent.startswith(UNSAMPLED[:36])
            assert session.opened.traceparent.endswith("-00")
            assert not any(commit.traceparent for commit in session.commits)
            await harness.generate(PROMPT, LENGTH)
            session = drafter.sessions[max(drafter.sessions)]
            assert session.commits[0].traceparent.endswith("-01")
            await harness.idle()

    with collector(Manner.TAKES, monkeypatch) as receiver:
        run(body())
        assert len(receiver.named(names.SPAN_GENERATE)) == 1


def test_refused_and_cancelled_requests_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with serving(metrics="127.0.0.1:0") as harness:
            with pytest.raises(Exception, match="must not be empty"):
                await harness.generate([], LENGTH)
            call = harness.stub.Generate(request(PROMPT, 200))
            await anext(aiter(call))
            call.cancel()
            await harness.idle()
            await harness.generate(PROMPT, 2)
            counts: dict[str, float] = {}
            while len(counts) < 3:
                counts = (await scraped(harness)).by("draftwood_verifier_requests_total", "rpc_response_status_code")
            assert counts == {"INVALID_ARGUMENT": 1, "CANCELLED": 1, "OK": 1}

    with collector(Manner.TAKES, monkeypatch) as receiver:
        run(body())
        failed = {span.attributes[names.RPC_STATUS]: span.failed for span in receiver.named(names.SPAN_GENERATE)}
        assert failed == {"INVALID_ARGUMENT": True, "CANCELLED": False, "OK": False}


def test_drafts_that_never_come_are_late_and_their_waiting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with serving(metrics="127.0.0.1:0", draft_wait_ms=100.0) as harness, harness.drafter(silent):
            await harness.generate(PROMPT, LENGTH)
            await harness.idle()
            scrape = await scraped(harness)
        # The first round waits until the time is up, the others no more; the last has no use for a draft.
        late = scrape.total("draftwood_verifier_plain_steps_total", draftwood_reason="late_draft")
        assert late == scrape.total("draftwood_verifier_proposals_total", draftwood_outcome="late") == LENGTH - 2
        assert scrape.total("draftwood_verifier_plain_steps_total", draftwood_reason="end") == 1
        assert scrape.total("draftwood_verifier_draft_wait_seconds_sum") == pytest.approx(0.1, rel=0.2)

    with collector(Manner.TAKES, monkeypatch) as receiver:
        run(body())
        first = min(receiver.named(names.SPAN_ROUND), key=lambda span: span.started_at)
        assert first.attributes[names.OUTCOME] == "late"
        assert first.attributes[names.WAIT_TIME] == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("device_s", [0.0, 0.004])
def test_a_step_tells_what_the_gpu_worked_where_there_is_one(device_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with serving() as harness:
            harness.target.device_s = device_s
            await harness.generate(PROMPT, 4)
            await harness.idle()

    with collector(Manner.TAKES, monkeypatch) as receiver:
        run(body())
    steps = receiver.named(names.SPAN_STEP)
    assert steps
    assert {span.attributes.get(names.DEVICE_TIME, 0.0) for span in steps} == {device_s}


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with serving() as harness:
            await harness.generate(PROMPT, LENGTH)
            observers = harness.service.engine.observers
            assert not any(isinstance(observer, VerifierTelemetry) for observer in observers)
            assert not {"telemetry", "OtelBatchSpanRecordProcessor"} & {t.name for t in threading.enumerate()}

    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    run(body())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            run(body())
