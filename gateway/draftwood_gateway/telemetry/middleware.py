"""Around every HTTP request: its trace context comes in here, and its status and first byte are seen here."""

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwood_gateway.telemetry.observer import GatewayTelemetry
from draftwood_wire.telemetry import TRACEPARENT

# Where the routes find what their requests carry on.
TRACEPARENT_KEY = "draftwood.traceparent"
_UNKNOWN_ROUTE = "other"


class TelemetryMiddleware:
    def __init__(self, app: ASGIApp, telemetry: GatewayTelemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        traceparent = Headers(scope=scope).get(TRACEPARENT, "")
        with self._telemetry.serving(scope["path"], traceparent, http_method=scope["method"]) as served:

            async def observed(message: Message) -> None:
                if message["type"] == "http.response.start":
                    served.status = str(message["status"])
                elif message.get("body") and not served.first_at:
                    served.first_at = time.monotonic()
                await send(message)

            scope[TRACEPARENT_KEY] = served.traceparent
            try:
                await self._app(scope, receive, observed)
            finally:
                # Known once routed; paths that have no route must not become a metric's label each.
                route = scope.get("route")
                served.route = _UNKNOWN_ROUTE if route is None else route.path
