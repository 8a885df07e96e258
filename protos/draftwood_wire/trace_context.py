"""W3C trace context: which trace a span belongs to, and whether anybody wants it."""

import random
import re
from dataclasses import dataclass

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Ids of one span; `sampled` says whether it is exported."""

    trace_id: int
    span_id: int
    sampled: bool

    @classmethod
    def root(cls, *, sampled: bool) -> "TraceContext":
        return cls(_random_id(128), _random_id(64), sampled)

    @classmethod
    def parse(cls, traceparent: str) -> "TraceContext | None":
        """None for what is not a traceparent, which W3C says to ignore."""
        match = _FORM.fullmatch(traceparent)
        if match is None:
            return None
        version, trace_id, span_id, flags, rest = match.groups()
        if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))

    def child(self, *, sampled: bool | None = None) -> "TraceContext":
        """A new span of the same trace."""
        return TraceContext(self.trace_id, _random_id(64), self.sampled if sampled is None else sampled)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def _random_id(bits: int) -> int:
    return random.getrandbits(bits) or 1
