"""Spans made after the fact, from times that a loop wrote down, and sent to an OTLP collector.

Configured by OpenTelemetry's own environment variables; without an endpoint nothing here runs. The one head decision,
sampler and volume, is taken when a request comes in; its context then travels, and spans follow when they have ended.
"""

import importlib.metadata
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from draftwood_wire.telemetry import SPANS_PER_SECOND
from draftwood_wire.trace_context import TraceContext
from draftwood_wire.volume import TokenBucket

Value = str | bool | int | float | Sequence[str]

# What a collector that does not answer may add to the end of a service.
FLUSH_S = 1.0
_NO_STATUS = Status(StatusCode.UNSET)


@dataclass(frozen=True, kw_only=True)
class FinishedSpan:
    """Times are time.monotonic. `error` describes what went wrong and sets the status."""

    name: str
    context: TraceContext
    parent: TraceContext | None = None
    started_at: float
    ended_at: float
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Mapping[str, Value] = field(default_factory=dict)
    links: Sequence[TraceContext] = ()
    error: str = ""


class Tracing:
    """The spans of one service. `begin` belongs to a loop and is cheap, `emit` to a thread behind it."""

    def __init__(self, service_name: str, *, spans_per_second: float = SPANS_PER_SECOND) -> None:
        self.requests = TokenBucket(spans_per_second / 2)
        self.details = TokenBucket(spans_per_second / 2)
        # Both are asked when something begins; what began at different times may end, and be sent, all at once.
        self._exports = TokenBucket(spans_per_second)
        # A provider made without a sampler has the one that the environment names.
        self._head = TracerProvider(shutdown_on_exit=False).sampler
        self._exporter = OTLPSpanExporter()
        self._queue = BatchSpanProcessor(self._exporter)
        self._resource = service_resource(service_name)
        self._scope = InstrumentationScope("draftwood", importlib.metadata.version("draftwood"))
        self._clock = WallClock()

    @property
    def refused(self) -> int:
        """Spans that were not made to stay within the volume."""
        return self.requests.refused + self.details.refused + self._exports.refused

    def begin(self, name: str, kind: SpanKind, parent: TraceContext | None, *, spans: int) -> TraceContext:
        """The context of a new span that brings `spans` with it; not sampled when sampler or volume are against it."""
        context = TraceContext.root(sampled=False) if parent is None else parent.child(sampled=False)
        above = None if parent is None else trace.set_span_in_context(NonRecordingSpan(_span_context(parent)))
        wanted = self._head.should_sample(above, context.trace_id, name, kind).decision.is_sampled()
        if not (wanted and self.requests.take(spans)):
            return context
        return TraceContext(context.trace_id, context.span_id, True)

    def emit(self, *spans: FinishedSpan) -> None:
        """Hand spans that mean little without each other to the exporter's queue: all, or above the volume none. Those
        whose context is not sampled are passed over. One thread emits."""
        sampled = [span for span in spans if span.context.sampled]
        if self._exports.take(len(sampled)):
            for span in sampled:
                self._export(span)

    def _export(self, span: FinishedSpan) -> None:
        # Not by a tracer: those start spans, choose ids and ask samplers, all of which is over.
        self._queue.on_end(
            ReadableSpan(
                name=span.name,
                context=_span_context(span.context),
                parent=None if span.parent is None else _span_context(span.parent),
                resource=self._resource,
                attributes=span.attributes,
                links=[Link(_span_context(link)) for link in span.links],
                kind=span.kind,
                status=Status(StatusCode.ERROR, span.error) if span.error else _NO_STATUS,
                start_time=self._clock.wall_ns(span.started_at),
                end_time=self._clock.wall_ns(span.ended_at),
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        """Send what waits, for FLUSH_S at most. Blocks."""
        # The exporter retries for long; shut down, it gives up at once.
        deadline = threading.Timer(FLUSH_S, self._exporter.shutdown)
        deadline.daemon = True
        deadline.start()
        self._queue.shutdown()
        deadline.cancel()


class WallClock:
    """The one place where time.monotonic becomes the time of day."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def wall_ns(self, monotonic_s: float) -> int:
        """Nanoseconds since 1970; one offset for the whole process, so that spans keep their order and lengths."""
        return self._offset_ns + round(monotonic_s * 1e9)


def tracing_from_environment(service_name: str) -> Tracing | None:
    """None unless OTEL_EXPORTER_OTLP_ENDPOINT or its traces form names a collector, and nothing else forbids it."""
    named = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    unwanted = os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none"
    return Tracing(service_name) if named and not disabled and not unwanted else None


def service_resource(service_name: str) -> Resource:
    """What this process is; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word."""
    own = Resource({SERVICE_NAME: service_name, SERVICE_VERSION: importlib.metadata.version("draftwood")})
    return Resource.create().merge(own).merge(OTELResourceDetector().detect())


def _span_context(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags)
