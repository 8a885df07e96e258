"""What the event loop sees of telemetry: a few calls that write something down, and nothing at all when it is off."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import SpanKind

from draftwood_verifier.engine import Engine
from draftwood_verifier.record import StepRecord
from draftwood_verifier.sequence import Sequence
from draftwood_verifier.telemetry.history import Histories
from draftwood_verifier.telemetry.metrics import Traffic, VerifierMetrics, observe_engine
from draftwood_verifier.telemetry.records import DraftAsked, Record, RequestEnded
from draftwood_verifier.telemetry.spans import REQUEST_SPANS, ROUND_SPANS, VerifierSpans, is_exemplary
from draftwood_wire import telemetry as names
from draftwood_wire.service_telemetry import ServiceTelemetry
from draftwood_wire.trace_context import TraceContext

SERVICE_NAME = "draftwood-verifier"


@dataclass(slots=True)
class ServedCall:
    """A Generate call while it runs; the servicer fills in what it learns."""

    traceparent: str  # what the request carries from here on
    sequence: Sequence | None = None
    status: str = "OK"

    @property
    def finished(self) -> bool:
        return self.sequence is not None and self.sequence.output.finish_reason is not None


class VerifierTelemetry:
    """Off, it hands traceparents on and does nothing else."""

    def __init__(self, *, metrics: str, model_name: str) -> None:
        """`metrics`: host:port to serve them on, or empty."""
        self._service = ServiceTelemetry[Record](SERVICE_NAME, metrics)
        self._tracing = self._service.tracing
        self._spans = VerifierSpans(self._tracing, model_name) if self._tracing else None
        self._metrics = VerifierMetrics(self._service.meters) if self._service.meters else None
        self._histories = Histories()

    @property
    def metrics_address(self) -> str:
        """host:port of the endpoint; empty without one."""
        return self._service.metrics_address

    def start(self, engine: Engine, traffic: Traffic) -> None:
        """Follow every step from here on. Raises Unavailable when the metrics' address can't be had."""
        if self._service.on:
            engine.observers.append(self)
        if self._service.meters is not None and self._metrics is not None:
            observe_engine(self._service.meters, engine, traffic, self._metrics)
        self._service.start(self._take, self._freeze)

    def close(self) -> None:
        """Blocks for a moment."""
        self._service.close()

    def step_done(self, record: StepRecord) -> None:
        self._service.put(record)

    @contextmanager
    def serving(self, traceparent: str) -> Iterator[ServedCall]:
        """Around a Generate call, refused ones included."""
        arrived_at = time.monotonic()
        parent, context = self._begin(traceparent)
        call = ServedCall(traceparent if context is None else context.traceparent)
        try:
            yield call
        except asyncio.CancelledError:
            # A client that has its last tokens may hang up before it has read the status.
            call.status = "OK" if call.finished else "CANCELLED"
            raise
        except Exception:
            call.status = "UNKNOWN" if call.status == "OK" else call.status
            raise
        finally:
            reason = call.sequence.output.finish_reason if call.sequence else None
            self._service.put(
                RequestEnded(
                    sequence=call.sequence,
                    context=context,
                    parent=parent,
                    arrived_at=arrived_at,
                    ended_at=time.monotonic(),
                    status=call.status,
                    finish_reason=reason.value if reason else "",
                )
            )

    def ask_drafts(self, committed: Iterable[tuple[Sequence, int]]) -> dict[int, str]:
        """Which sessions' next rounds are traced: the traceparent that their drafter's `draft` span is to have, by
        session. It is the same for all, as they are drafted for together. `committed`: sessions whose drafter is told
        of a commit, and its round."""
        if self._tracing is None:
            return {}
        context: TraceContext | None = None
        asked: dict[int, str] = {}
        for sequence, round_number in committed:
            if not (sequence.traceparent.endswith("-01") and is_exemplary(round_number + 1)):
                continue
            if not self._tracing.details.take(ROUND_SPANS):
                break
            context = context or TraceContext.root(sampled=True)
            asked[sequence.session_id] = context.traceparent
            self._service.put(DraftAsked(session_id=sequence.session_id, round=round_number + 1, context=context))
        return asked

    def _begin(self, traceparent: str) -> tuple[TraceContext | None, TraceContext | None]:
        """The caller's context, and our own when there are traces."""
        parent = TraceContext.parse(traceparent)
        if self._tracing is None:
            return parent, None
        return parent, self._tracing.begin(names.SPAN_GENERATE, SpanKind.SERVER, parent, spans=REQUEST_SPANS)

    def _take(self, record: Record) -> None:
        """On the telemetry thread."""
        sinks = [sink for sink in (self._metrics, self._spans) if sink is not None]
        if isinstance(record, StepRecord):
            firsts, rounds = self._histories.take(record)
            for sink in sinks:
                sink.step(record, firsts, rounds)
        elif isinstance(record, RequestEnded):
            history = self._histories.end(record)
            for sink in sinks:
                sink.end(record, history)
        elif self._spans is not None:
            self._spans.asked(record)

    def _freeze(self) -> None:
        if self._metrics is not None:
            self._metrics.freeze()
