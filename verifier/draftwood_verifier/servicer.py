"""The client's side of VerifierService: requests in, token ids out."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc

from draftwood_verifier.admission import Limits, admit
from draftwood_verifier.engine import Engine, StepFailed
from draftwood_verifier.sequence import FinishReason, Sequence
from draftwood_verifier.telemetry.observer import VerifierTelemetry
from draftwood_wire.errors import DraftwoodError, Unavailable, status_of
from draftwood_wire.telemetry import traceparent_of
from draftwood_wire.v1 import verifier_service_pb2 as pb
from draftwood_wire.v1 import verifier_service_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
Speculate = Callable[[AsyncIterator[pb.SpeculateRequest], Context], Awaitable[None]]

_FINISH = {FinishReason.STOP: pb.FINISH_REASON_STOP, FinishReason.LENGTH: pb.FINISH_REASON_LENGTH}


class VerifierServicer(verifier_service_pb2_grpc.VerifierServiceServicer):
    """Translates between protobuf and the engine; holds no state of requests."""

    def __init__(
        self,
        engine: Engine,
        telemetry: VerifierTelemetry,
        speculate: Speculate,
        limits: Limits,
        info: pb.GetInfoResponse,
    ) -> None:
        self._engine = engine
        self._telemetry = telemetry
        self._speculate = speculate
        self._limits = limits
        self._info = info
        self._ids = itertools.count(1)
        self._draining = False

    def drain(self) -> None:
        """Refuse new requests from here on."""
        self._draining = True

    # Written with context.write, not yield: a cancelled call then unwinds here at once.
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        with self._telemetry.serving(traceparent_of(context.invocation_metadata())) as call:
            try:
                sequence = call.sequence = self._submit(request, call.traceparent)
            except DraftwoodError as error:
                call.status = status_of(error).name
                await _abort(context, error)
            try:
                await _stream(sequence, context)
            except StepFailed as error:
                call.status = grpc.StatusCode.INTERNAL.name
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
            finally:
                # Also reached when the client has gone: grpc cancels the handler.
                self._engine.cancel(sequence)

    async def Speculate(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.SpeculateRequest], context: Context
    ) -> None:
        try:
            await self._speculate(aiter(request_iterator), context)
        except DraftwoodError as error:
            await _abort(context, error)

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:  # noqa: N802
        del request, context
        return self._info

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:  # noqa: N802
        del request, context
        scheduler, drafters = self._engine.scheduler, self._engine.drafters
        return pb.GetLoadResponse(
            running_requests=len(scheduler.running),
            waiting_requests=len(scheduler.waiting),
            drafters=len(drafters.links),
            kv_pages_total=scheduler.allocator.total,
            kv_pages_free=scheduler.allocator.available,
            committed_tokens=self._engine.committed_tokens,
            refused_proposals=drafters.counters.refused,
            stale_proposals=drafters.counters.stale,
            drafted_sessions=sum(len(link.sessions) for link in drafters.links),
        )

    def _submit(self, request: pb.GenerateRequest, traceparent: str) -> Sequence:
        if self._draining:
            raise Unavailable("this verifier is stopping")
        sequence = admit(request, self._limits, session_id=next(self._ids), traceparent=traceparent)
        self._engine.submit(sequence)
        return sequence


async def _stream(sequence: Sequence, context: Context) -> None:
    """Send tokens as they come; the seed with the first ones, the reason with the last ones."""
    seed: int | None = sequence.sampling.seed
    while True:
        message = pb.GenerateResponse(token_ids=await sequence.output.take(), seed=seed, usage=_usage(sequence))
        seed = None
        if sequence.output.finish_reason is None:
            await context.write(message)
            continue
        message.finish_reason = _FINISH[sequence.output.finish_reason]
        await context.write(message)
        return


def _usage(sequence: Sequence) -> pb.GenerateUsage:
    return pb.GenerateUsage(
        prompt_tokens=sequence.prompt_len,
        cached_tokens=sequence.cached_tokens,
        completion_tokens=len(sequence.tokens) - sequence.prompt_len,
        rounds=sequence.rounds,
        speculative_rounds=sequence.speculative_rounds,
        proposed_nodes=sequence.proposed_nodes,
        accepted_nodes=sequence.accepted_nodes,
    )


async def _abort(context: Context, error: DraftwoodError) -> NoReturn:
    await context.abort(status_of(error), str(error))
    raise AssertionError("abort raises")
