"""The verifier's spans, made of finished steps and requests; docs/telemetry.md draws how they nest and link."""

from opentelemetry.trace import SpanKind

from draftwood_verifier.commit import Commit
from draftwood_verifier.record import StepRecord
from draftwood_verifier.sequence import Sequence
from draftwood_verifier.telemetry.history import SessionHistory
from draftwood_verifier.telemetry.records import DraftAsked, RequestEnded
from draftwood_verifier.telemetry.rounds import Outcome, Round
from draftwood_wire import telemetry as names
from draftwood_wire.trace_context import TraceContext
from draftwood_wire.tracing import FinishedSpan, Tracing, Value

# Generate, queue, prefill, decode.
REQUEST_SPANS = 4
# A traced round and the step that it was part of.
ROUND_SPANS = 2
# OpenTelemetry's default limit for a span.
_MAX_LINKS = 128
_FIRST_ROUNDS = 8
_EVERY_ROUND = 16


def is_exemplary(round_number: int) -> bool:
    """Which rounds of a traced request are traced, as far as the volume allows."""
    return round_number <= _FIRST_ROUNDS or round_number % _EVERY_ROUND == 0


class VerifierSpans:
    """Fed by the telemetry thread."""

    def __init__(self, tracing: Tracing, model_name: str) -> None:
        self._tracing = tracing
        self._model_name = model_name
        self._decodes: dict[int, TraceContext] = {}  # the decode span of each traced session that has a token
        self._drafts: dict[int, DraftAsked] = {}  # the next round of these sessions is traced

    def asked(self, asked: DraftAsked) -> None:
        self._drafts[asked.session_id] = asked

    def step(self, step: StepRecord, firsts: list[Commit], rounds: list[Round]) -> None:
        for commit in firsts:
            context = _context_of(commit.sequence)
            if context is not None:
                self._decodes[commit.sequence.session_id] = context.child()
        traced = [done for done in rounds if self._is_traced(done)]
        if not traced:
            return
        context = TraceContext.root(sampled=True)
        self._tracing.emit(_step_span(step, context), *(self._round_span(done, context) for done in traced))

    def end(self, ended: RequestEnded, history: SessionHistory | None) -> None:
        session_id = ended.sequence.session_id if ended.sequence else 0
        decode = self._decodes.pop(session_id, None)
        self._drafts.pop(session_id, None)
        if ended.context is None or not ended.context.sampled:
            return
        spans = [self._request_span(ended, ended.context, history)]
        if history is not None:
            spans.append(_phase_span(names.SPAN_QUEUE, ended.context, ended.arrived_at, history.started_at))
            if history.first_token_at:
                spans.append(_phase_span(names.SPAN_PREFILL, ended.context, history.started_at, history.first_token_at))
            if decode is not None and history.first_token_at:
                spans.append(_decode_span(decode, ended.context, history))
        self._tracing.emit(*spans)

    def _is_traced(self, done: Round) -> bool:
        commit = done.commit
        session_id = commit.sequence.session_id
        if session_id not in self._decodes:
            return False
        asked = self._drafts.get(session_id)
        if asked is not None and asked.round == commit.round:
            return True
        # Rounds that a drafter is asked for were decided on when it was asked.
        wanted = done.outcome is Outcome.LATE or (not commit.asked_at and is_exemplary(commit.round))
        return wanted and self._tracing.details.take(ROUND_SPANS)

    def _round_span(self, done: Round, step: TraceContext) -> FinishedSpan:
        commit = done.commit
        session_id = commit.sequence.session_id
        decode = self._decodes[session_id]
        asked = self._drafts.pop(session_id, None)
        links = [step]
        # Only an answer to this very commit is known to have a span of its own.
        if asked is not None and asked.round == commit.round and commit.answered_at:
            links.append(asked.context)
        attributes: dict[str, Value] = {
            names.ROUND: commit.round,
            names.BASE_LENGTH: commit.base_len,
            names.OUTCOME: done.outcome.value,
            names.NODES: commit.nodes_verified,
            names.ACCEPTED: done.accepted,
            names.WAIT_TIME: done.wait_s,
            names.VERIFY_TIME: done.verify_s,
            names.OVERHEAD_TIME: done.overhead_s,
        }
        if done.reason is not None:
            attributes[names.REASON] = done.reason.value
        return FinishedSpan(
            name=names.SPAN_ROUND,
            context=decode.child(),
            parent=decode,
            started_at=done.started_at,
            ended_at=done.ended_at,
            attributes=attributes,
            links=links,
        )

    def _request_span(self, ended: RequestEnded, context: TraceContext, history: SessionHistory | None) -> FinishedSpan:
        attributes: dict[str, Value] = {
            names.OPERATION: "text_completion",
            names.PROVIDER: "draftwood",
            names.REQUEST_MODEL: self._model_name,
            names.RPC_SYSTEM: "grpc",
            names.RPC_METHOD: names.SPAN_GENERATE,
            names.RPC_STATUS: ended.status,
        }
        if ended.sequence is not None:
            attributes |= _request_attributes(ended.sequence)
            attributes[names.OUTPUT_TOKENS] = history.tokens if history else 0
        if ended.finish_reason:
            attributes[names.FINISH_REASONS] = [ended.finish_reason]
        return FinishedSpan(
            name=names.SPAN_GENERATE,
            context=context,
            parent=ended.parent,
            started_at=ended.arrived_at,
            ended_at=ended.ended_at,
            kind=SpanKind.SERVER,
            attributes=attributes,
            error="" if ended.status in ("OK", "CANCELLED") else ended.status,
        )


def _step_span(step: StepRecord, context: TraceContext) -> FinishedSpan:
    sequences = {segment.sequence.session_id: segment.sequence for segment in step.segments}
    links = [link for link in map(_context_of, sequences.values()) if link is not None]
    attributes: dict[str, Value] = {
        names.STEP: step.number,
        names.ROWS: sum(segment.rows for segment in step.segments),
        names.SESSIONS: len(sequences),
        names.NODES: sum(commit.nodes_verified for commit in step.commits),
        names.VERIFY_TIME: step.executed_at - step.started_at,
    }
    if step.device_s:
        attributes[names.DEVICE_TIME] = step.device_s
    return FinishedSpan(
        name=names.SPAN_STEP,
        context=context,
        started_at=step.started_at,
        ended_at=step.finished_at,
        attributes=attributes,
        links=links[:_MAX_LINKS],
    )


def _phase_span(name: str, request: TraceContext, started_at: float, ended_at: float) -> FinishedSpan:
    return FinishedSpan(name=name, context=request.child(), parent=request, started_at=started_at, ended_at=ended_at)


def _decode_span(context: TraceContext, request: TraceContext, history: SessionHistory) -> FinishedSpan:
    return FinishedSpan(
        name=names.SPAN_DECODE,
        context=context,
        parent=request,
        started_at=history.first_token_at,
        ended_at=history.last_commit_at,
        attributes={
            names.ROUNDS: history.rounds,
            names.PLAIN_STEPS: history.plain_steps,
            names.NODES: history.nodes,
            names.ACCEPTED: history.accepted,
            names.LATE_DRAFTS: history.late,
            names.WAIT_TIME: history.wait_s,
            names.VERIFY_TIME: history.verify_s,
            names.OVERHEAD_TIME: history.overhead_s,
        },
    )


def _context_of(sequence: Sequence) -> TraceContext | None:
    """The request's own span when it is traced."""
    context = TraceContext.parse(sequence.traceparent)
    return context if context is not None and context.sampled else None


def _request_attributes(sequence: Sequence) -> dict[str, Value]:
    return {
        names.SESSION_ID: sequence.session_id,
        names.MODE: sequence.mode.value,
        names.NODE_LIMIT: sequence.node_limit,
        names.REQUEST_MAX_TOKENS: sequence.length_limit - sequence.prompt_len,
        names.REQUEST_TEMPERATURE: sequence.sampling.temperature,
        names.REQUEST_TOP_P: sequence.sampling.top_p,
        names.REQUEST_TOP_K: sequence.sampling.top_k,
        names.INPUT_TOKENS: sequence.prompt_len,
        names.CACHED_TOKENS: sequence.cached_tokens,
    }
