"""Everything a request can get wrong is found here, before it is anywhere near a step."""

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.sequence import DraftMode, Sequence
from draftwood_wire.errors import InvalidRequest
from draftwood_wire.tree import MAX_NODES
from draftwood_wire.v1 import sampling_pb2, verifier_service_pb2

_MODES = {
    sampling_pb2.SPECULATION_MODE_UNSPECIFIED: DraftMode.AUTO,
    sampling_pb2.SPECULATION_MODE_OFF: DraftMode.OFF,
    sampling_pb2.SPECULATION_MODE_CHAIN: DraftMode.CHAIN,
    sampling_pb2.SPECULATION_MODE_TREE: DraftMode.TREE,
    sampling_pb2.SPECULATION_MODE_AUTO: DraftMode.AUTO,
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the target and its cache can serve."""

    vocab_size: int
    context_limit: int  # prompt and completion together
    token_capacity: int  # of the whole KV cache
    eos_token_ids: tuple[int, ...]
    node_limit: int  # of a request that names none


def admit(
    request: verifier_service_pb2.GenerateRequest, limits: Limits, *, session_id: int, traceparent: str = ""
) -> Sequence:
    """A request as a session, seed set; raises InvalidRequest that names the field."""
    prompt = list(request.prompt_token_ids)
    _check_prompt(prompt, limits)
    _check_ids("stop_token_ids", request.stop_token_ids, limits.vocab_size)
    stop_ids = frozenset(request.stop_token_ids)
    if not request.ignore_eos:
        stop_ids |= frozenset(limits.eos_token_ids)
    mode = _MODES.get(request.speculation.mode)
    if mode is None:
        raise InvalidRequest(f"speculation.mode: {request.speculation.mode} is unknown")
    return Sequence(
        session_id=session_id,
        tokens=prompt,
        prompt_len=len(prompt),
        length_limit=_length_limit(request, limits),
        stop_ids=stop_ids,
        sampling=_sampling(request.sampling, limits.vocab_size),
        mode=mode,
        node_limit=_node_limit(request.speculation.node_limit, limits),
        traceparent=traceparent,
    )


def _check_prompt(prompt: list[int], limits: Limits) -> None:
    if not prompt:
        raise InvalidRequest("prompt_token_ids: must not be empty")
    if len(prompt) >= limits.context_limit:
        raise InvalidRequest(
            f"prompt_token_ids: {len(prompt)} tokens leave no room in a context of {limits.context_limit}"
        )
    _check_ids("prompt_token_ids", prompt, limits.vocab_size)


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    highest = max(ids, default=0)
    if highest >= vocab_size:
        raise InvalidRequest(f"{name}: {highest} is not in the vocabulary of {vocab_size}")


def _length_limit(request: verifier_service_pb2.GenerateRequest, limits: Limits) -> int:
    prompt_len = len(request.prompt_token_ids)
    if not request.HasField("max_tokens"):
        # A prompt that fills the cache alone is refused by the scheduler, which sees one token more.
        return max(prompt_len + 1, min(limits.context_limit, limits.token_capacity))
    if request.max_tokens <= 0:
        raise InvalidRequest(f"max_tokens: {request.max_tokens} is below 1")
    if prompt_len + request.max_tokens > limits.context_limit:
        raise InvalidRequest(
            f"max_tokens: {request.max_tokens} and a prompt of {prompt_len} tokens exceed "
            f"the context of {limits.context_limit}"
        )
    return prompt_len + request.max_tokens


def _node_limit(asked: int, limits: Limits) -> int:
    if asked > MAX_NODES:
        raise InvalidRequest(f"speculation.node_limit: {asked} is above {MAX_NODES}")
    return asked or limits.node_limit


def _sampling(params: sampling_pb2.SamplingParams, vocab_size: int) -> SamplingParams:
    if not (math.isfinite(params.temperature) and params.temperature >= 0):
        raise InvalidRequest(f"sampling.temperature: {params.temperature} is not a finite number of at least 0")
    for name, value in (("top_p", params.top_p), ("min_p", params.min_p)):
        if not 0 <= value <= 1:  # also false for NaN
            raise InvalidRequest(f"sampling.{name}: {value} is outside 0..1")
    return SamplingParams(
        temperature=params.temperature,
        top_k=min(params.top_k, vocab_size),
        top_p=params.top_p or 1.0,
        min_p=params.min_p,
        seed=params.seed if params.HasField("seed") else secrets.randbits(64),
    )
