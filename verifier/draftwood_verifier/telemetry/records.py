"""What the event loop writes down; the telemetry thread reads it later, so only what never changes may be read of a
sequence: its id, limits, mode, sampling and traceparent."""

from dataclasses import dataclass

from draftwood_verifier.record import StepRecord
from draftwood_verifier.sequence import Sequence
from draftwood_wire.trace_context import TraceContext


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestEnded:
    """Times are time.monotonic. No `sequence`: it was refused. No `context`: nothing is traced."""

    sequence: Sequence | None
    context: TraceContext | None
    parent: TraceContext | None
    arrived_at: float
    ended_at: float
    status: str  # name of the gRPC status
    finish_reason: str  # empty when it did not come to one


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftAsked:
    """A session's next round is traced; its drafter was given the context of the `draft` span to make."""

    session_id: int
    round: int
    context: TraceContext


Record = StepRecord | RequestEnded | DraftAsked
