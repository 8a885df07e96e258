"""The client's side of VerifierService: requests in, token ids out."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc

from draftwood_verifier.admission import Limits, admit
from draftwood_verifier.drafting import DrafterLink
from draftwood_verifier.engine import Engine, StepFailed
from draftwood_verifier.load_counters import LoadCounters
from draftwood_verifier.round_reports import RoundLog, RoundReport
from draftwood_verifier.sequence import FinishReason, Sequence
from draftwood_verifier.telemetry.observer import VerifierTelemetry
from draftwood_wire.errors import DraftwoodError, Unavailable, status_of
from draftwood_wire.telemetry import traceparent_of
from draftwood_wire.tree import tree_to_proto
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
        self._counters = LoadCounters()
        engine.observers.append(self._counters)
        self._round_log = RoundLog(engine)
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
                await self._stream(sequence, context)
            except StepFailed as error:
                call.status = grpc.StatusCode.INTERNAL.name
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
            finally:
                # Also reached when the client has gone: grpc cancels the handler.
                self._engine.cancel(sequence)
                self._round_log.forget(sequence.session_id)

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
        scheduler, drafters, counters = self._engine.scheduler, self._engine.drafters, self._counters
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
            steps=self._engine.steps,
            first_tokens=counters.first_tokens,
            rounds=counters.rounds,
            speculative_rounds=counters.speculative_rounds,
            proposed_nodes=counters.proposed_nodes,
            accepted_nodes=counters.accepted_nodes,
            rerooted_proposals=drafters.counters.rerooted,
            last_step_nodes=counters.last_step_nodes,
            last_step_requests=counters.last_step_requests,
            drafter_loads=[_drafter_load(link) for link in drafters.links],
        )

    def _submit(self, request: pb.GenerateRequest, traceparent: str) -> Sequence:
        if self._draining:
            raise Unavailable("this verifier is stopping")
        sequence = admit(request, self._limits, session_id=next(self._ids), traceparent=traceparent)
        self._engine.submit(sequence)
        if request.report_rounds:
            self._round_log.watch(sequence.session_id)
        return sequence

    async def _stream(self, sequence: Sequence, context: Context) -> None:
        """Send tokens as they come; the seed with the first ones, the reason with the last ones."""
        seed: int | None = sequence.sampling.seed
        while True:
            message = pb.GenerateResponse(token_ids=await sequence.output.take(), seed=seed, usage=_usage(sequence))
            message.rounds.extend(map(_round_message, self._round_log.take(sequence.session_id)))
            seed = None
            if sequence.output.finish_reason is None:
                await context.write(message)
                continue
            message.finish_reason = _FINISH[sequence.output.finish_reason]
            await context.write(message)
            return


def _round_message(report: RoundReport) -> pb.RoundReport:
    commit = report.commit
    return pb.RoundReport(
        round=commit.round,
        base_len=commit.base_len,
        tree=tree_to_proto(commit.tree),
        path=commit.nodes,
        token_ids=commit.tokens,
        draft_wait_ms=report.draft_wait_ms,
        verify_ms=report.verify_ms,
    )


def _drafter_load(link: DrafterLink) -> pb.DrafterLoad:
    return pb.DrafterLoad(
        drafter_id=link.drafter_id, sessions=len(link.sessions), late=link.late, node_limit=link.node_limit
    )


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
