"""What a client asks for, whichever front end it came through, and the checks that need no model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from draftwood_wire.errors import InvalidRequest

# Each costs a search at every token.
_MAX_STOPS = 64


class SpeculationMode(Enum):
    DEFAULT = "default"
    OFF = "off"
    CHAIN = "chain"
    TREE = "tree"
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, kw_only=True)
class ChatPrompt:
    """Messages as the chat template takes them; `options` are extra template variables."""

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenPrompt:
    token_ids: Sequence[int]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Field names are those of the wire and of vLLM; 0 turns top_k, top_p and min_p off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    seed: int | None = None

    def check(self) -> None:
        """Raises InvalidRequest naming the field."""
        for name in ("temperature", "top_p", "min_p"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidRequest(f"{name}: {getattr(self, name)} is not a finite number")
        _require("temperature", self.temperature, 0 <= self.temperature <= 1e6, "at least 0")
        _require("top_k", self.top_k, 0 <= self.top_k < 1 << 32, "at least 0")
        _require("top_p", self.top_p, 0 <= self.top_p <= 1, "between 0 and 1")
        _require("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1")
        if self.seed is not None:
            _require("seed", self.seed, 0 <= self.seed < 1 << 64, "a 64-bit number")


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One prompt, one completion. No `max_tokens`: `default_max_tokens` or what room there is, and without either up to
    the context limit. No `model`: the one served."""

    prompt: Prompt
    model: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    speculation: SpeculationMode = SpeculationMode.DEFAULT
    node_limit: int = 0
    report_rounds: bool = False
    request_id: str = ""
    traceparent: str = ""

    def check(self) -> None:
        """Raises InvalidRequest naming the field."""
        self.sampling.check()
        if self.max_tokens is not None:
            _require("max_tokens", self.max_tokens, 1 <= self.max_tokens < 1 << 31, "at least 1")
        if len(self.stop) > _MAX_STOPS:
            raise InvalidRequest(f"stop: {len(self.stop)} strings are more than {_MAX_STOPS}")
        if not all(self.stop):
            raise InvalidRequest("stop: an empty string would end every text before it starts")


def _require(name: str, value: float, holds: bool, wanted: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name}: {value} is not {wanted}")
