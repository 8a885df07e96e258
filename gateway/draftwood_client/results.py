"""What a generation gives back."""

import enum
from dataclasses import dataclass

from draftwood_wire.v1 import gateway_service_pb2 as pb
from draftwood_wire.v1.verifier_service_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, GenerateUsage


class FinishReason(enum.Enum):
    """STOP: a stop string or token. LENGTH: max_tokens or the context limit."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of the request, and the rounds after its first token."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    rounds: int
    speculative_rounds: int
    proposed_nodes: int
    accepted_nodes: int

    @property
    def accepted_length(self) -> float:
        """Mean tokens a round; 0 when there was no round."""
        return (self.completion_tokens - 1) / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of the text and the ids behind it; `finish_reason` and `usage` on the last one only."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage


_FINISH_REASONS = {FINISH_REASON_STOP: FinishReason.STOP, FINISH_REASON_LENGTH: FinishReason.LENGTH}


def chunk_of(message: pb.GenerateStreamResponse) -> Chunk:
    return Chunk(
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        usage=_usage_of(message.usage) if message.HasField("usage") else None,
    )


def generation_of(message: pb.GatewayServiceGenerateResponse) -> Generation:
    return Generation(
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=_FINISH_REASONS[message.finish_reason],
        usage=_usage_of(message.usage),
    )


def _usage_of(message: GenerateUsage) -> Usage:
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
        rounds=message.rounds,
        speculative_rounds=message.speculative_rounds,
        proposed_nodes=message.proposed_nodes,
        accepted_nodes=message.accepted_nodes,
    )
