"""A service's instruments, and the endpoint that Prometheus scrapes them from."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from opentelemetry.context import Context
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from draftwood_wire.errors import Unavailable
from draftwood_wire.telemetry import Kind, Metric
from draftwood_wire.tracing import service_resource

# Values with their labels, as of now.
Reading = Iterable[tuple[float, Mapping[str, str | int]]]
_NO_LABELS: dict[str, str | int] = {}


class Histogram(Protocol):
    """Takes one value, in the metric's unit."""

    def __call__(self, value: float, labels: Mapping[str, str | int] = ...) -> None: ...


# Looking up the current context would be a third of the cost of a record.
_NO_CONTEXT = Context()


class Meters:
    """Instruments of one service. Counters and gauges are read at a scrape, histograms are fed with `Histogram`."""

    def __init__(self, service_name: str) -> None:
        self.registry = CollectorRegistry()
        self._refresh = _Refresh()
        self.registry.register(self._refresh)
        self._provider = MeterProvider(
            metric_readers=[PrometheusMetricReader(registry=self.registry, scope_info_enabled=False)],
            resource=service_resource(service_name),
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        self._meter = self._provider.get_meter("draftwood")

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """What to run on the scrape's thread before anything is read."""
        self._refresh.run = refresh

    def observe(self, metric: Metric, read: Callable[[], Reading]) -> None:
        """A counter or gauge whose values `read` gives at each scrape, on the scrape's thread."""
        create = {
            Kind.COUNTER: self._meter.create_observable_counter,
            Kind.GAUGE: self._meter.create_observable_gauge,
        }[metric.kind]

        def observations(options: CallbackOptions) -> Iterable[Observation]:
            del options
            return [Observation(value, dict(labels)) for value, labels in read()]

        create(metric.name, callbacks=[observations], unit=metric.unit, description=metric.text)

    def observe_value(self, metric: Metric, read: Callable[[], float]) -> None:
        """The same for one value without labels."""
        self.observe(metric, lambda: [(read(), _NO_LABELS)])

    def histogram(self, metric: Metric) -> Histogram:
        assert metric.kind is Kind.HISTOGRAM, f"{metric.name} is no histogram"
        made = self._meter.create_histogram(
            metric.name,
            unit=metric.unit,
            description=metric.text,
            explicit_bucket_boundaries_advisory=list(metric.buckets),
        )

        def record(value: float, labels: Mapping[str, str | int] = _NO_LABELS) -> None:
            made.record(value, labels, _NO_CONTEXT)

        return record

    def close(self) -> None:
        self._provider.shutdown()


class MetricsEndpoint:
    """Serves `/metrics` on threads of its own, from construction to `close`."""

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        """`address` is host:port; port 0 takes a free one. Raises Unavailable when it can't be had."""
        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), registry)
        except (OSError, ValueError) as error:
            raise Unavailable(f"cannot serve metrics on {address}: {error}") from error
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Refresh(Collector):
    """First in the registry, has no metrics: its turn is the start of a scrape."""

    def __init__(self) -> None:
        self.run: Callable[[], None] = lambda: None

    def collect(self) -> Iterable[Family]:
        self.run()
        return ()
