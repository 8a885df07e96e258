"""One completion as a client of the gateway sees it, with the clock running."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from draftwood_client import Client

Mode = Literal["off", "chain", "tree", "auto"]
# What the demo calls the modes of speculation.
MODES: dict[str, Mode] = {"plain": "off", "chain": "chain", "tree": "tree"}
_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Completion:
    """`decode_tokens` came after the first message, within `decode_s`: prefill is not part of the speed."""

    text: str
    token_ids: tuple[int, ...]
    rounds: int
    decode_tokens: int
    decode_s: float


@dataclass(frozen=True, kw_only=True)
class ModeSummary:
    """Completions of one mode, taken together."""

    tokens_per_s: float
    accepted_length: float
    rounds: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all requests of a comparison have in common."""

    max_tokens: int
    temperature: float
    seed: int
    node_limit: int


def complete(client: Client, prompt: str, mode: Mode, setting: Setting) -> Completion:
    """Run one request to its end; raises DraftwoodError when the gateway refuses it."""
    text: list[str] = []
    token_ids: list[int] = []
    first_tokens, first_s, last_s, rounds = 0, 0.0, 0.0, 0
    for chunk in client.stream(prompt, speculation=mode, timeout_s=_TIMEOUT_S, **asdict(setting)):
        last_s = time.perf_counter()
        if not token_ids and chunk.token_ids:
            first_tokens, first_s = len(chunk.token_ids), last_s
        text.append(chunk.text)
        token_ids.extend(chunk.token_ids)
        rounds = chunk.usage.rounds if chunk.usage else 0
    return Completion(
        text="".join(text),
        token_ids=tuple(token_ids),
        rounds=rounds,
        decode_tokens=len(token_ids) - first_tokens,
        decode_s=last_s - first_s if first_tokens else 0.0,
    )


def summarise(completions: Iterable[Completion]) -> ModeSummary:
    """Speed over all decode tokens; accepted length is tokens committed a round (the first comes from prefill)."""
    done = list(completions)
    rounds = sum(c.rounds for c in done)
    tokens = sum(len(c.token_ids) for c in done)
    committed = sum(max(0, len(c.token_ids) - 1) for c in done)
    seconds = sum(c.decode_s for c in done)
    return ModeSummary(
        tokens_per_s=sum(c.decode_tokens for c in done) / seconds if seconds else 0.0,
        accepted_length=committed / rounds if rounds else 0.0,
        rounds=rounds,
        tokens=tokens,
    )
