"""Metrics and spans of the drafter: one record a draft step, worked on by the telemetry thread."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from draftwood_drafter.engine import DraftEngine
from draftwood_wire import telemetry as names
from draftwood_wire.metering import Meters
from draftwood_wire.service_telemetry import ServiceTelemetry
from draftwood_wire.trace_context import TraceContext
from draftwood_wire.tracing import FinishedSpan, Tracing, Value

SERVICE_NAME = "draftwood-drafter"
# OpenTelemetry's default limit for a span.
_MAX_LINKS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftRecord:
    """One draft step; times are time.monotonic. `spans` are the contexts that its spans are to have, one for each
    verifier step that asked for drafts of this one; `requests` are those of the sessions' requests."""

    started_at: float
    ended_at: float
    device_s: float  # that the drafts took the GPU, by its own clock; 0 on a CPU
    sessions: int
    nodes: int
    faults: int
    spans: tuple[TraceContext, ...]
    requests: tuple[TraceContext, ...]


class Link(Protocol):
    """The way to the verifier."""

    connected: bool


class DrafterTelemetry:
    """Off, it does nothing."""

    def __init__(self, *, metrics: str) -> None:
        """`metrics`: host:port to serve them on, or empty."""
        self._service = ServiceTelemetry[DraftRecord](SERVICE_NAME, metrics)
        self._metrics = _Metrics(self._service.meters) if self._service.meters else None
        self.drafted: Callable[[DraftRecord], None] = self._service.put

    @property
    def metrics_address(self) -> str:
        """host:port of the endpoint; empty without one."""
        return self._service.metrics_address

    def start(self, engine: DraftEngine, link: Link) -> None:
        """Raises Unavailable when the metrics' address can't be had."""
        if self._service.meters is not None:
            _observe(self._service.meters, engine, link)
        self._service.start(self._take, self._freeze)

    def close(self) -> None:
        """Blocks for a moment."""
        self._service.close()

    def _take(self, record: DraftRecord) -> None:
        """On the telemetry thread."""
        if self._metrics is not None:
            self._metrics.take(record)
        if self._service.tracing is not None:
            _emit(self._service.tracing, record)

    def _freeze(self) -> None:
        if self._metrics is not None:
            self._metrics.freeze()


@dataclass(slots=True)
class _Totals:
    nodes: int = 0
    faults: int = 0


class _Metrics:
    def __init__(self, meters: Meters) -> None:
        self._totals = _Totals()
        self._frozen = _Totals()
        self._duration = meters.histogram(names.DRAFT_DURATION)
        self._batch = meters.histogram(names.DRAFT_BATCH)
        meters.observe_value(names.DRAFTED_NODES, lambda: self._frozen.nodes)
        meters.observe_value(names.DRAFT_FAULTS, lambda: self._frozen.faults)

    def take(self, record: DraftRecord) -> None:
        self._totals.nodes += record.nodes
        self._totals.faults += record.faults
        if record.sessions:
            self._duration(record.ended_at - record.started_at)
            self._batch(record.sessions)

    def freeze(self) -> None:
        self._frozen = copy.copy(self._totals)


def _observe(meters: Meters, engine: DraftEngine, link: Link) -> None:
    """What the loop owns: a scrape's thread takes one number or one length of each."""
    cache = engine.cache
    meters.observe_value(names.DRAFTER_SESSIONS, lambda: engine.session_count)
    meters.observe_value(names.CONNECTED, lambda: link.connected)

    def pages() -> list[tuple[float, dict[str, str | int]]]:
        free = cache.pages_free
        return [(free, {names.STATE: "free"}), (cache.pages_total - free, {names.STATE: "used"})]

    meters.observe(names.CONTEXT_PAGES, pages)


def _emit(tracing: Tracing, record: DraftRecord) -> None:
    attributes: dict[str, Value] = {names.SESSIONS: record.sessions, names.NODES: record.nodes}
    if record.device_s:
        attributes[names.DEVICE_TIME] = record.device_s
    for context in record.spans:
        if not tracing.details.take(1):
            return
        tracing.emit(
            FinishedSpan(
                name=names.SPAN_DRAFT,
                context=context,
                started_at=record.started_at,
                ended_at=record.ended_at,
                attributes=attributes,
                links=record.requests[:_MAX_LINKS],
            )
        )
