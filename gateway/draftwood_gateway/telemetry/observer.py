"""What the event loop sees of telemetry: around each call and each generation, something is written down."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from opentelemetry.trace import SpanKind

from draftwood_gateway.requests import GenerationRequest
from draftwood_gateway.telemetry.metrics import GatewayMetrics
from draftwood_gateway.telemetry.records import Generated, Record, ServedRequest
from draftwood_gateway.telemetry.spans import GatewaySpans, generation_span_name, server_span_name
from draftwood_gateway.verifier_pool import VerifierPool
from draftwood_wire import telemetry as names
from draftwood_wire.errors import DraftwoodError
from draftwood_wire.service_telemetry import ServiceTelemetry
from draftwood_wire.trace_context import TraceContext

SERVICE_NAME = "draftwood-gateway"


class GatewayTelemetry:
    """Off, it hands traceparents on and does nothing else."""

    def __init__(self, *, metrics: str, model_name: str) -> None:
        """`metrics`: host:port to serve them on, or empty."""
        self.in_flight = 0
        self._model_name = model_name
        self._service = ServiceTelemetry[Record](SERVICE_NAME, metrics)
        self._tracing = self._service.tracing
        self._spans = GatewaySpans(self._tracing, model_name) if self._tracing else None
        self._metrics = GatewayMetrics(self._service.meters) if self._service.meters else None

    @property
    def metrics_address(self) -> str:
        """host:port of the endpoint; empty without one."""
        return self._service.metrics_address

    def start(self, pool: VerifierPool) -> None:
        """Raises Unavailable when the metrics' address can't be had."""
        if self._service.meters is not None:
            self._service.meters.observe_value(names.IN_FLIGHT, lambda: self.in_flight)
            self._service.meters.observe_value(names.VERIFIERS_UP, lambda: pool.reachable)
        self._service.start(self._take, self._freeze)

    def close(self) -> None:
        """Blocks for a moment."""
        self._service.close()

    @contextmanager
    def serving(self, route: str, traceparent: str, *, http_method: str = "") -> Iterator[ServedRequest]:
        """Around one call; whoever serves it sets the status, and may correct the route."""
        parent = TraceContext.parse(traceparent)
        context = self._begin(server_span_name(route, http_method), SpanKind.SERVER, parent)
        served = ServedRequest(
            route=route,
            http_method=http_method,
            traceparent=_traceparent(context, parent, traceparent),
            context=context,
            parent=parent,
            arrived_at=time.monotonic(),
        )
        self.in_flight += 1
        try:
            yield served
        except asyncio.CancelledError:
            served.status = "499" if http_method else "CANCELLED"
            raise
        except Exception:
            served.status = served.status or ("500" if http_method else "UNKNOWN")
            raise
        finally:
            self.in_flight -= 1
            served.ended_at = time.monotonic()
            self._service.put(served)

    @contextmanager
    def generating(self, request: GenerationRequest) -> Iterator[Generated]:
        """Around one prompt's generation, within a call."""
        parent = TraceContext.parse(request.traceparent)
        context = self._begin(generation_span_name(request, self._model_name), SpanKind.CLIENT, parent)
        generated = Generated(
            request=replace(request, traceparent=_traceparent(context, parent, request.traceparent)),
            context=context,
            parent=parent,
            started_at=time.monotonic(),
        )
        try:
            yield generated
        except DraftwoodError as error:
            generated.error = str(error)
            raise
        finally:
            generated.ended_at = time.monotonic()
            self._service.put(generated)

    def _begin(self, name: str, kind: SpanKind, parent: TraceContext | None) -> TraceContext | None:
        return self._tracing.begin(name, kind, parent, spans=1) if self._tracing else None

    def _take(self, record: Record) -> None:
        """On the telemetry thread."""
        for sink in (self._metrics, self._spans):
            if sink is None:
                continue
            if isinstance(record, ServedRequest):
                sink.served(record)
            else:
                sink.generated(record)

    def _freeze(self) -> None:
        if self._metrics is not None:
            self._metrics.freeze()


def _traceparent(context: TraceContext | None, parent: TraceContext | None, given: str) -> str:
    """What goes on: our own span, or without traces what came in if it was any good."""
    if context is not None:
        return context.traceparent
    return given if parent is not None else ""
