"""The gateway's metrics: counts kept here and read at a scrape, and histograms."""

import copy
from collections import Counter
from dataclasses import dataclass, field

from draftwood_gateway.telemetry.records import Generated, ServedRequest
from draftwood_wire import telemetry as names
from draftwood_wire.metering import Meters


@dataclass(kw_only=True, slots=True)
class _Totals:
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)  # by route and status
    resumes: int = 0


class GatewayMetrics:
    """Fed by the telemetry thread; scrapes read the copy that `freeze` makes."""

    def __init__(self, meters: Meters) -> None:
        self._totals = _Totals()
        self._frozen = _Totals()
        self._duration = meters.histogram(names.GATEWAY_DURATION)
        self._first_token = meters.histogram(names.GATEWAY_FIRST_TOKEN)
        meters.observe_value(names.GATEWAY_RESUMES, lambda: self._frozen.resumes)
        meters.observe(
            names.GATEWAY_REQUESTS,
            lambda: [
                (count, {names.ROUTE: route, names.STATUS: status})
                for (route, status), count in self._frozen.requests.items()
            ],
        )

    def freeze(self) -> None:
        self._frozen = copy.deepcopy(self._totals)

    def served(self, served: ServedRequest) -> None:
        self._totals.requests[served.route, served.status] += 1
        self._duration(served.ended_at - served.arrived_at, served.route)

    def generated(self, generated: Generated) -> None:
        self._totals.resumes += generated.resumes
        if generated.first_at:
            self._first_token(generated.first_at - generated.started_at)
