"""Traces and metrics of one service as one thing: on or off by configuration, started and closed together."""

from collections.abc import Callable
from typing import Generic, TypeVar

from draftwood_wire import telemetry as names
from draftwood_wire.metering import Meters, MetricsEndpoint
from draftwood_wire.recording import Recorder
from draftwood_wire.tracing import Tracing, tracing_from_environment

_Record = TypeVar("_Record")


class ServiceTelemetry(Generic[_Record]):
    """`put` from the loop, between `start` and `close`; with neither traces nor metrics it does nothing."""

    def __init__(self, service_name: str, metrics: str) -> None:
        """`metrics`: host:port to serve them on, or empty. Traces are up to the environment."""
        self.tracing: Tracing | None = tracing_from_environment(service_name)
        self.meters: Meters | None = Meters(service_name) if metrics else None
        self._metrics = metrics
        self._endpoint: MetricsEndpoint | None = None
        self._recorder: Recorder[_Record] | None = None

    @property
    def on(self) -> bool:
        return self.tracing is not None or self.meters is not None

    @property
    def metrics_address(self) -> str:
        """host:port of the endpoint; empty without one."""
        return self._endpoint.address if self._endpoint else ""

    def start(self, consume: Callable[[_Record], None], freeze: Callable[[], None]) -> None:
        """`consume` makes metrics and spans of records, `freeze` sets aside the counts for a scrape; both run on other
        threads, never at the same time. Raises Unavailable when the metrics' address can't be had."""
        if not self.on:
            return
        recorder = self._recorder = Recorder(consume)
        meters, tracing = self.meters, self.tracing
        if meters is None:
            return
        meters.observe_value(names.RECORDS_DROPPED, lambda: recorder.dropped)
        meters.observe_value(names.SPANS_REFUSED, lambda: tracing.refused if tracing else 0)

        def set_aside() -> None:
            freeze()
            meters.freeze()

        meters.before_scrape(lambda: recorder.drain(set_aside))
        try:
            self._endpoint = MetricsEndpoint(self._metrics, meters.registry)
        except BaseException:
            self.close()
            raise

    def put(self, record: _Record) -> None:
        """Never blocks."""
        if self._recorder is not None:
            self._recorder.put(record)

    def close(self) -> None:
        """Blocks until what is left has been sent, see `Tracing.close`."""
        if self._endpoint is not None:
            self._endpoint.close()
        if self._recorder is not None:
            self._recorder.close()
        if self.meters is not None:
            self.meters.close()
        if self.tracing is not None:
            self.tracing.close()
