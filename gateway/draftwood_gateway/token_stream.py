"""Token ids of one request from the verifiers, across the death of any of them.

Sampling is keyed by seed and position, so prompt + tokens so far on another verifier gives the same continuation.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import grpc
import grpc.aio

from draftwood_gateway.requests import GenerationRequest, SpeculationMode
from draftwood_gateway.rounds import Round
from draftwood_gateway.usage import Usage
from draftwood_gateway.verifier_pool import Verifier, VerifierPool
from draftwood_wire.errors import DraftwoodError, Unavailable, error_of
from draftwood_wire.telemetry import TRACEPARENT
from draftwood_wire.v1 import sampling_pb2
from draftwood_wire.v1 import verifier_service_pb2 as pb

# In a row, without a token in between.
_MAX_FAILURES = 5
_BACKOFF_S = 0.1
# The peer or the way to it broke; the request itself is fine.
_BROKEN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DATA_LOSS,
}
_MODES = {
    SpeculationMode.DEFAULT: sampling_pb2.SPECULATION_MODE_UNSPECIFIED,
    SpeculationMode.OFF: sampling_pb2.SPECULATION_MODE_OFF,
    SpeculationMode.CHAIN: sampling_pb2.SPECULATION_MODE_CHAIN,
    SpeculationMode.TREE: sampling_pb2.SPECULATION_MODE_TREE,
    SpeculationMode.AUTO: sampling_pb2.SPECULATION_MODE_AUTO,
}


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Tokens committed since the last one, and their rounds if the request reports them; `finished` and final figures
    in `usage` on the last one only."""

    token_ids: list[int]
    rounds: list[Round]
    finished: bool
    usage: Usage


class TokenStream:
    """Iterate `batches()` once; leaving the iteration cancels the verifier's call."""

    def __init__(
        self, pool: VerifierPool, request: GenerationRequest, prompt: list[int], *, room: int, resume_wait_s: float
    ) -> None:
        self._pool = pool
        self._request = request
        self._prompt = prompt
        self._room = room
        self._resume_wait_s = resume_wait_s
        self._tokens: list[int] = []
        self._seed = request.sampling.seed
        self._usage = Usage(prompt_tokens=len(prompt))  # of the attempts that ended, tokens not counted
        self.resumes = 0  # attempts after the first
        self._failures = 0
        self._failed: set[Verifier] = set()

    async def batches(self) -> AsyncGenerator[TokenBatch]:
        """Raises the DraftwoodError that the client should see."""
        while True:
            wait_s = self._resume_wait_s if self._tokens or self._failures else 0.0
            async with self._pool.lease(self._failed, wait_s) as verifier:
                try:
                    async with aclosing(self._attempt(verifier)) as batches:
                        async for batch in batches:
                            yield batch
                            if batch.finished:
                                return
                    error: DraftwoodError = Unavailable(f"verifier {verifier.address} ended its stream too early")
                except grpc.aio.AioRpcError as broken:
                    error = _error_of(broken)
                    if broken.code() not in _BROKEN and not self._has_room_elsewhere(broken.code(), verifier):
                        raise error from broken
            if len(self._tokens) >= (self._request.max_tokens or self._room):
                yield TokenBatch(token_ids=[], rounds=[], finished=True, usage=self._usage)
                return
            await self._count_failure(verifier, error)
            self.resumes += 1

    def _has_room_elsewhere(self, code: grpc.StatusCode, verifier: Verifier) -> bool:
        """A full verifier is no reason to fail while another may have room, or a client already holds tokens."""
        if code != grpc.StatusCode.RESOURCE_EXHAUSTED:
            return False
        return bool(self._tokens) or self._pool.has_other_than({*self._failed, verifier})

    async def _count_failure(self, verifier: Verifier, error: DraftwoodError) -> None:
        self._failures += 1
        if self._failures >= _MAX_FAILURES:
            raise error
        self._failed.add(verifier)
        if not self._pool.has_other_than(self._failed):
            await asyncio.sleep(_BACKOFF_S * 2**self._failures)

    async def _attempt(self, verifier: Verifier) -> AsyncGenerator[TokenBatch]:
        metadata = ((TRACEPARENT, self._request.traceparent),) if self._request.traceparent else ()
        call = verifier.stub.Generate(self._message(), metadata=metadata)
        before, attempt = self._usage, Usage()
        try:
            async for response in call:
                self._take(response)
                attempt = _usage_of(response, attempt)
                self._usage = before.plus(attempt)
                finished = response.finish_reason != pb.FINISH_REASON_UNSPECIFIED
                rounds = [_round_of(report) for report in response.rounds]
                yield TokenBatch(
                    token_ids=list(response.token_ids), rounds=rounds, finished=finished, usage=self._usage
                )
        finally:
            call.cancel()

    def _take(self, response: pb.GenerateResponse) -> None:
        if response.HasField("seed"):
            self._seed = response.seed
        if response.token_ids:
            self._tokens += response.token_ids
            self._failures = 0
            self._failed.clear()

    def _max_tokens(self) -> int | None:
        limit = self._request.max_tokens
        return None if limit is None else limit - len(self._tokens)

    def _message(self) -> pb.GenerateRequest:
        sampling = self._request.sampling
        return pb.GenerateRequest(
            request_id=self._request.request_id,
            prompt_token_ids=self._prompt + self._tokens,
            sampling=sampling_pb2.SamplingParams(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                seed=self._seed,
            ),
            max_tokens=self._max_tokens(),
            stop_token_ids=self._request.stop_token_ids,
            ignore_eos=self._request.ignore_eos,
            speculation=sampling_pb2.SpeculationParams(
                mode=_MODES[self._request.speculation], node_limit=self._request.node_limit
            ),
            report_rounds=self._request.report_rounds,
        )


def _error_of(broken: grpc.aio.AioRpcError) -> DraftwoodError:
    """What the client is told. Without a class of its own the status is named once, at the client."""
    known = error_of(broken.code(), broken.details() or "")
    return DraftwoodError(broken.details() or broken.code().name) if type(known) is DraftwoodError else known


def _round_of(report: pb.RoundReport) -> Round:
    return Round(
        number=report.round,
        base_len=report.base_len,
        node_ids=list(report.tree.token_ids),
        parents=list(report.tree.parents),
        log_probs=list(report.tree.log_probs),
        path=list(report.path),
        token_ids=list(report.token_ids),
        draft_wait_ms=report.draft_wait_ms,
        verify_ms=report.verify_ms,
    )


def _usage_of(response: pb.GenerateResponse, so_far: Usage) -> Usage:
    """What the verifier says has been used so far, so that a call which is cut by a stop string is counted too."""
    if not response.HasField("usage"):
        return replace(so_far, messages=so_far.messages + 1)
    usage = response.usage
    return Usage(
        cached_tokens=usage.cached_tokens,
        rounds=usage.rounds,
        speculative_rounds=usage.speculative_rounds,
        proposed_nodes=usage.proposed_nodes,
        accepted_nodes=usage.accepted_nodes,
        messages=so_far.messages + 1,
    )
