"""What the event loop writes down when a request, or one generation of it, is over. Times are time.monotonic."""

from dataclasses import dataclass

from draftwood_gateway.requests import GenerationRequest
from draftwood_gateway.usage import Usage
from draftwood_wire.trace_context import TraceContext


@dataclass(kw_only=True, slots=True)
class ServedRequest:
    """One call at a front door; filled in while it runs, not touched once it is recorded."""

    route: str  # HTTP's route, or gRPC's full method
    http_method: str  # empty for gRPC
    traceparent: str  # what the request carries from here on
    context: TraceContext | None
    parent: TraceContext | None
    arrived_at: float
    status: str = ""  # HTTP's number, or the name of gRPC's
    first_at: float = 0.0  # the first of the answer's body went out
    ended_at: float = 0.0

    @property
    def failed(self) -> bool:
        """As the conventions for servers have it: the client's own mistakes are no errors."""
        if self.http_method:
            return self.status.startswith("5")
        return self.status in ("UNKNOWN", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS")


@dataclass(kw_only=True, slots=True)
class Generated:
    """One prompt's way through a verifier, or several when one breaks; filled in while it runs."""

    request: GenerationRequest  # its traceparent is what the verifiers get
    context: TraceContext | None
    parent: TraceContext | None
    started_at: float
    first_at: float = 0.0
    ended_at: float = 0.0
    usage: Usage | None = None
    finish_reason: str = ""
    resumes: int = 0
    error: str = ""


Record = ServedRequest | Generated
