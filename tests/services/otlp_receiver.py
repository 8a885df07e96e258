"""An OTLP collector for tests: a real gRPC server that keeps the spans it is sent, or misbehaves in a given way."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class Manner(Enum):
    TAKES = "takes"
    HANGS = "hangs"
    REFUSES = "refuses"


@dataclass(frozen=True, kw_only=True)
class ReceivedSpan:
    """Ids are hex, times seconds since 1970; `parent_id` is empty for a root."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    started_at: float
    ended_at: float
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    failed: bool

    @property
    def duration_s(self) -> float:
        return self.ended_at - self.started_at

    @property
    def key(self) -> tuple[str, str]:
        """As a link names it."""
        return self.trace_id, self.span_id


@dataclass
class Receiver(TraceServiceServicer):
    manner: Manner = Manner.TAKES
    endpoint: str = ""
    exports: int = 0
    callers: set[str] = field(default_factory=set)  # names of the services that have tried
    spans: list[ReceivedSpan] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> pb.ExportTraceServiceResponse:  # noqa: N802
        self.exports += 1
        self.callers |= {_service_of(resource) for resource in request.resource_spans}
        if self.manner is Manner.HANGS:
            self.released.wait()
        if self.manner is not Manner.TAKES:
            context.abort(grpc.StatusCode.UNAVAILABLE, "this collector takes nothing")
        for resource in request.resource_spans:
            service = _service_of(resource)
            for scope in resource.scope_spans:
                self.spans += [_span(service, span) for span in scope.spans]
        return pb.ExportTraceServiceResponse()

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def receiving(manner: Manner = Manner.TAKES) -> Iterator[Receiver]:
    receiver = Receiver(manner)
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        add_TraceServiceServicer_to_server(receiver, server)
        receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield receiver
        finally:
            receiver.released.set()
            server.stop(None).wait()


def _service_of(spans: Any) -> str:
    return str(_values(spans.resource.attributes)["service.name"])


def _span(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        started_at=span.start_time_unix_nano / 1e9,
        ended_at=span.end_time_unix_nano / 1e9,
        attributes=_values(span.attributes),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        failed=span.status.code == 2,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {entry.key: _value(entry.value) for entry in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
