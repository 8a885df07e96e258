"""A service's instruments, and the endpoint that Prometheus scrapes them from."""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from draftwood_wire.errors import Unavailable
from draftwood_wire.histogram import Histogram
from draftwood_wire.telemetry import Kind, Metric
from draftwood_wire.tracing import service_resource

# Values with their labels, as of now.
Reading = Iterable[tuple[float, Mapping[str, str | int]]]
_NO_LABELS: dict[str, str | int] = {}
_SCOPE = "draftwood"


class Meters:
    """Instruments of one service, read at a scrape: counters and gauges as they are then, histograms as `freeze` found
    them."""

    def __init__(self, service_name: str) -> None:
        self._histograms: list[Histogram] = []
        self.registry = CollectorRegistry()
        self._refresh = _Refresh()
        self.registry.register(self._refresh)
        resource = service_resource(service_name)
        self._provider = MeterProvider(
            metric_readers=[_Reader(self.registry, resource, self._histograms)],
            resource=resource,
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        self._meter = self._provider.get_meter(_SCOPE)

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
        made = Histogram(metric)
        self._histograms.append(made)
        return made

    def freeze(self) -> None:
        """Set aside what histograms hold, so that the next scrape's agree with each other; while none is fed."""
        for histogram in self._histograms:
            histogram.freeze()

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


class _Reader(PrometheusMetricReader):
    """Tells histograms beside what the SDK collects, which asks for them only where it has something itself: a service
    counts its lost records in any case."""

    def __init__(self, registry: CollectorRegistry, resource: Resource, histograms: list[Histogram]) -> None:
        super().__init__(registry=registry, scope_info_enabled=False)
        self._resource = resource
        self._histograms = histograms

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> None:
        read = [histogram.data() for histogram in self._histograms]
        scope = ScopeMetrics(InstrumentationScope(_SCOPE), [data for data in read if data is not None], "")
        own = ResourceMetrics(self._resource, [scope], "")
        super()._receive_metrics(MetricsData([*metrics_data.resource_metrics, own]), timeout_millis, **kwargs)


class _Refresh(Collector):
    """First in the registry, has no metrics: its turn is the start of a scrape."""

    def __init__(self) -> None:
        self.run: Callable[[], None] = lambda: None

    def collect(self) -> Iterable[Family]:
        self.run()
        return ()
