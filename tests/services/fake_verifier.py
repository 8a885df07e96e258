"""A verifier that streams scripted tokens over real gRPC, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio

from draftwood_wire.tls import ServerTls
from draftwood_wire.transport import PLAINTEXT_SERVER, Server
from draftwood_wire.v1 import verifier_service_pb2 as pb
from draftwood_wire.v1.tree_pb2 import TokenTree
from draftwood_wire.v1.verifier_service_pb2_grpc import (
    VerifierServiceServicer,
    add_VerifierServiceServicer_to_server,
)

# The completion of a prompt: a list of messages, each a list of token ids.
Script = Callable[[Sequence[int]], list[list[int]]]


@dataclass(kw_only=True)
class Call:
    """One Generate call; `ended` is set when its handler is over, `cancelled` says why."""

    request: pb.GenerateRequest
    metadata: dict[str, str | bytes]
    cancelled: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(kw_only=True)
class FakeVerifier(VerifierServiceServicer):
    """Cuts its script at stop tokens and max_tokens as a verifier does.

    `breaks`: statuses of the next calls, each with the number of messages sent before it; `hold` stops every call
    after its first message until it is cancelled, `gate` until it is set.
    """

    script: Script
    vocab_size: int
    context_limit: int = 256
    eos_token_ids: tuple[int, ...] = ()
    fingerprint: str = ""
    breaks: list[tuple[int, grpc.StatusCode]] = field(default_factory=list)
    hold: bool = False
    gate: asyncio.Event | None = None
    calls: list[Call] = field(default_factory=list)
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def GetInfo(self, request: pb.GetInfoRequest, context: object) -> pb.GetInfoResponse:  # noqa: ARG002, N802
        return pb.GetInfoResponse(
            model_name="fake",
            vocab_size=self.vocab_size,
            tokenizer_fingerprint=self.fingerprint,
            context_limit=self.context_limit,
            eos_token_ids=self.eos_token_ids,
            max_node_limit=256,
        )

    async def Generate(  # noqa: N802
        self,
        request: pb.GenerateRequest,
        context: grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse],
    ) -> AsyncIterator[pb.GenerateResponse]:
        call = Call(request=request, metadata=dict(context.invocation_metadata() or ()))
        self.calls.append(call)
        self.called.set()
        try:
            async for response in self._respond(request, context):
                yield response
        except (asyncio.CancelledError, GeneratorExit):
            call.cancelled = True
            raise
        finally:
            call.ended.set()

    async def _respond(
        self,
        request: pb.GenerateRequest,
        context: grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse],
    ) -> AsyncIterator[pb.GenerateResponse]:
        break_after, status = self.breaks.pop(0) if self.breaks else (None, None)
        messages, reason = self._cut(request)
        sent = 0
        for index, tokens in enumerate(messages):
            if break_after == index:
                assert status is not None
                await context.abort(status, "scripted")
            sent += len(tokens)
            last = index == len(messages) - 1
            yield pb.GenerateResponse(
                token_ids=tokens,
                seed=(request.sampling.seed if request.sampling.HasField("seed") else 77) if index == 0 else None,
                finish_reason=reason if last else pb.FINISH_REASON_UNSPECIFIED,
                usage=self._usage(request, sent, index) if last else None,
                rounds=[_report(request, index, sent, tokens)] if request.report_rounds else (),
            )
            if self.hold:
                await asyncio.Event().wait()
            if self.gate is not None:
                await self.gate.wait()

    def _cut(self, request: pb.GenerateRequest) -> tuple[list[list[int]], pb.FinishReason]:
        stops = {*request.stop_token_ids, *(() if request.ignore_eos else self.eos_token_ids)}
        messages: list[list[int]] = []
        total = 0
        for message in self.script(request.prompt_token_ids):
            messages.append([])
            for token in message:
                messages[-1].append(token)
                total += 1
                if token in stops:
                    return messages, pb.FINISH_REASON_STOP
                if total == request.max_tokens:
                    return messages, pb.FINISH_REASON_LENGTH
        return messages, pb.FINISH_REASON_LENGTH

    def _usage(self, request: pb.GenerateRequest, completion: int, rounds: int) -> pb.GenerateUsage:
        return pb.GenerateUsage(
            prompt_tokens=len(request.prompt_token_ids),
            cached_tokens=3,
            completion_tokens=completion,
            rounds=rounds,
            speculative_rounds=rounds,
            proposed_nodes=rounds * 4,
            accepted_nodes=max(0, completion - 1 - rounds),
        )


def _report(request: pb.GenerateRequest, index: int, sent: int, tokens: list[int]) -> pb.RoundReport:
    """A message as one round: the first from prefill, later ones a chain of its tokens, the last one wrong."""
    nodes = len(tokens) if index else 0
    return pb.RoundReport(
        round=index,
        base_len=len(request.prompt_token_ids) + sent - len(tokens),
        tree=TokenTree(
            token_ids=[*tokens[:-1], 5][:nodes],
            parents=range(nodes),
            log_probs=[-0.5 * (i + 1) for i in range(nodes)],
        ),
        path=range(len(tokens)),
        token_ids=tokens,
        draft_wait_ms=2.5 if index else 0.0,
        verify_ms=7.5,
    )


@asynccontextmanager
async def serving(
    verifier: FakeVerifier, address: str = "127.0.0.1:0", tls: ServerTls = PLAINTEXT_SERVER
) -> AsyncIterator[tuple[str, Server]]:
    """Its address and its server while it serves."""
    server = Server(address, ["draftwood_wire.v1.VerifierService"], tls=tls)
    add_VerifierServiceServicer_to_server(verifier, server.grpc)
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}", server
    finally:
        await server.stop(0)
