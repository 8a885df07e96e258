"""Names that traces and metrics share across the services, and the W3C context that travels with a request."""

from collections.abc import Iterable

TRACEPARENT = "traceparent"


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The W3C traceparent of an incoming call's metadata, or an empty string."""
    for key, value in metadata or ():
        if key == TRACEPARENT and isinstance(value, str):
            return value
    return ""
