"""Which trace each session's draft belongs to, on one Speculate stream."""

from collections.abc import Iterable

from draftwood_wire.trace_context import TraceContext


class DraftContexts:
    """Fed with the traceparents of the stream's frames; an empty one says that nothing is traced."""

    def __init__(self) -> None:
        self._requests: dict[int, TraceContext] = {}
        self._drafts: dict[int, TraceContext] = {}

    def opened(self, session_id: int, traceparent: str) -> None:
        self.closed(session_id)
        context = TraceContext.parse(traceparent) if traceparent else None
        if context is not None and context.sampled:
            self._requests[session_id] = context

    def committed(self, session_id: int, traceparent: str) -> None:
        """A newer commit asks for a newer draft: what the last one asked for is not made any more."""
        self._drafts.pop(session_id, None)
        context = TraceContext.parse(traceparent) if traceparent else None
        if context is not None:
            self._drafts[session_id] = context

    def closed(self, session_id: int) -> None:
        self._requests.pop(session_id, None)
        self._drafts.pop(session_id, None)

    def take(self, session_ids: Iterable[int]) -> tuple[tuple[TraceContext, ...], tuple[TraceContext, ...]]:
        """Contexts of the draft spans that these sessions' drafts are to have, and of the requests behind them."""
        if not self._drafts and not self._requests:
            return (), ()
        ids = list(session_ids)
        drafts = {self._drafts.pop(i): None for i in ids if i in self._drafts}
        return tuple(drafts), tuple(self._requests[i] for i in ids if i in self._requests)
