"""The gRPC face of the gateway."""

import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import NoReturn
from uuid import uuid4

import grpc
import grpc.aio

from draftwood_gateway.generation import FinishReason, Generator, TextDelta
from draftwood_gateway.requests import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    Sampling,
    SpeculationMode,
    TextPrompt,
    TokenPrompt,
)
from draftwood_gateway.rounds import TextRound
from draftwood_gateway.telemetry.observer import GatewayTelemetry
from draftwood_gateway.telemetry.records import ServedRequest
from draftwood_gateway.usage import Usage
from draftwood_wire.errors import DraftwoodError, InvalidRequest, status_of
from draftwood_wire.telemetry import traceparent_of
from draftwood_wire.v1 import gateway_service_pb2 as pb
from draftwood_wire.v1 import sampling_pb2, tree_pb2
from draftwood_wire.v1.gateway_service_pb2_grpc import GatewayServiceServicer
from draftwood_wire.v1.verifier_service_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    FINISH_REASON_UNSPECIFIED,
    GenerateUsage,
    RoundReport,
)

_SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name
_MODES = {
    sampling_pb2.SPECULATION_MODE_UNSPECIFIED: SpeculationMode.DEFAULT,
    sampling_pb2.SPECULATION_MODE_OFF: SpeculationMode.OFF,
    sampling_pb2.SPECULATION_MODE_CHAIN: SpeculationMode.CHAIN,
    sampling_pb2.SPECULATION_MODE_TREE: SpeculationMode.TREE,
    sampling_pb2.SPECULATION_MODE_AUTO: SpeculationMode.AUTO,
}
_FINISH_REASONS = {
    None: FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: FINISH_REASON_STOP,
    FinishReason.LENGTH: FINISH_REASON_LENGTH,
}
_StreamContext = grpc.aio.ServicerContext[pb.GenerateStreamRequest, pb.GenerateStreamResponse]
_UnaryContext = grpc.aio.ServicerContext[pb.GatewayServiceGenerateRequest, pb.GatewayServiceGenerateResponse]


class GatewayServicer(GatewayServiceServicer):
    """A cancelled call is cancelled at the verifier as well."""

    def __init__(self, generator: Generator, telemetry: GatewayTelemetry) -> None:
        self._generator = generator
        self._telemetry = telemetry

    # Written with context.write, not yield: a cancelled call then unwinds here at once.
    async def GenerateStream(  # type: ignore[override]  # noqa: N802
        self, request: pb.GenerateStreamRequest, context: _StreamContext
    ) -> None:
        with self._serving("GenerateStream", context) as served:
            try:
                admitted = await self._generator.admit(_request_of(request.request, served.traceparent))
                async with aclosing(self._generator.stream(admitted)) as deltas:
                    async for delta in deltas:
                        served.first_at = served.first_at or time.monotonic()
                        await context.write(_response_of(delta))
            except DraftwoodError as error:
                served.status = status_of(error).name
                await _abort(context, error)

    async def Generate(  # noqa: N802
        self, request: pb.GatewayServiceGenerateRequest, context: _UnaryContext
    ) -> pb.GatewayServiceGenerateResponse:
        with self._serving("Generate", context) as served:
            try:
                admitted = await self._generator.admit(_request_of(request.request, served.traceparent))
                completion = await self._generator.complete(admitted)
                served.first_at = time.monotonic()
            except DraftwoodError as error:
                served.status = status_of(error).name
                await _abort(context, error)
        return pb.GatewayServiceGenerateResponse(
            text=completion.text,
            token_ids=completion.token_ids,
            finish_reason=_FINISH_REASONS[completion.finish_reason],
            usage=_usage_message(completion.usage),
            rounds=map(_round_message, completion.rounds or ()),
            text_ends=completion.text_ends if completion.rounds is not None else None,
        )

    async def ListModels(self, request: pb.ListModelsRequest, context: object) -> pb.ListModelsResponse:  # noqa: ARG002, N802
        return pb.ListModelsResponse(models=[self._generator.model_name])

    @contextmanager
    def _serving(self, method: str, context: _StreamContext | _UnaryContext) -> Iterator[ServedRequest]:
        traceparent = traceparent_of(context.invocation_metadata())
        with self._telemetry.serving(f"{_SERVICE}/{method}", traceparent) as served:
            yield served
            served.status = grpc.StatusCode.OK.name


async def _abort(context: _StreamContext | _UnaryContext, error: DraftwoodError) -> NoReturn:
    await context.abort(status_of(error), str(error))
    raise AssertionError("abort raises")


def _request_of(message: pb.TextRequest, traceparent: str) -> GenerationRequest:
    mode = _MODES.get(message.speculation.mode)
    if mode is None:
        raise InvalidRequest(f"speculation.mode: {message.speculation.mode} is unknown")
    sampling = message.sampling
    return GenerationRequest(
        prompt=_prompt_of(message),
        model=message.model,
        sampling=Sampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed if sampling.HasField("seed") else None,
        ),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        stop=list(message.stop),
        stop_token_ids=list(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        speculation=mode,
        node_limit=message.speculation.node_limit,
        report_rounds=message.report_rounds,
        request_id=uuid4().hex,
        traceparent=traceparent,
    )


def _prompt_of(message: pb.TextRequest) -> Prompt:
    match message.WhichOneof("input"):
        case "prompt":
            return TextPrompt(text=message.prompt)
        case "chat":
            messages = [{"role": entry.role, "content": entry.content} for entry in message.chat.messages]
            return ChatPrompt(messages=messages)
        case "prompt_tokens":
            return TokenPrompt(token_ids=list(message.prompt_tokens.token_ids))
    raise InvalidRequest("prompt: is missing; set prompt, chat or prompt_tokens")


def _response_of(delta: TextDelta) -> pb.GenerateStreamResponse:
    return pb.GenerateStreamResponse(
        text=delta.text,
        token_ids=delta.token_ids,
        finish_reason=_FINISH_REASONS[delta.finish_reason],
        usage=None if delta.usage is None else _usage_message(delta.usage),
        rounds=map(_round_message, delta.rounds or ()),
        text_ends=delta.text_ends if delta.rounds is not None else None,
    )


def _round_message(entry: TextRound) -> pb.TextRound:
    told = entry.round
    report = RoundReport(
        round=told.number,
        base_len=told.base_len,
        tree=tree_pb2.TokenTree(token_ids=told.node_ids, parents=told.parents, log_probs=told.log_probs),
        path=told.path,
        token_ids=told.token_ids,
        draft_wait_ms=told.draft_wait_ms,
        verify_ms=told.verify_ms,
    )
    return pb.TextRound(report=report, node_texts=entry.node_texts, token_texts=entry.token_texts)


def _usage_message(usage: Usage) -> GenerateUsage:
    return GenerateUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        rounds=usage.rounds,
        speculative_rounds=usage.speculative_rounds,
        proposed_nodes=usage.proposed_nodes,
        accepted_nodes=usage.accepted_nodes,
    )
