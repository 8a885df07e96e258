"""The one path of a request under both front ends: checks, tokens, verifier, text."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum

from draftwood_gateway.requests import ChatPrompt, GenerationRequest, TextPrompt
from draftwood_gateway.rounds import Round, TextRound, with_texts
from draftwood_gateway.telemetry.observer import GatewayTelemetry
from draftwood_gateway.text_stream import TextPiece, TextStream
from draftwood_gateway.token_stream import TokenStream
from draftwood_gateway.tokenization import TextTokenizer
from draftwood_gateway.usage import Usage
from draftwood_gateway.verifier_pool import ServedModel, VerifierPool
from draftwood_wire.errors import InvalidRequest, Unavailable, UnknownModel

# A prompt this long is tokenised in a thread, so that other streams go on meanwhile.
_LONG_TEXT_CHARACTERS = 20_000


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, kw_only=True)
class TextDelta:
    """Text since the last one, the ids behind it and where each of them ends in the whole text; `finish_reason` and
    `usage` on the last one only. `rounds` is None when the request does not report them."""

    text: str
    token_ids: list[int]
    text_ends: list[int]
    rounds: list[TextRound] | None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    text: str
    token_ids: list[int]
    text_ends: list[int]
    rounds: list[TextRound] | None
    finish_reason: FinishReason
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class AdmittedRequest:
    """A request that passed the checks, with its prompt's token ids and everything that ends its text."""

    request: GenerationRequest
    prompt: list[int]
    room: int  # tokens between the prompt and the context limit
    stop_ids: frozenset[int]


class Generator:
    def __init__(
        self,
        tokenizer: TextTokenizer,
        pool: VerifierPool,
        telemetry: GatewayTelemetry,
        model_name: str,
        resume_wait_s: float,
    ) -> None:
        self.model_name = model_name
        self._telemetry = telemetry
        self._tokenizer = tokenizer
        self._pool = pool
        self._resume_wait_s = resume_wait_s

    @property
    def ready(self) -> bool:
        return self._pool.model is not None

    def check_model(self, name: str) -> None:
        """Raises UnknownModel."""
        if name not in ("", self.model_name):
            raise UnknownModel(f"model: {name!r} is not served here, {self.model_name!r} is")

    async def admit(self, request: GenerationRequest) -> AdmittedRequest:
        """Everything that can be refused without the verifier is refused here. Raises DraftwoodError."""
        self.check_model(request.model)
        request.check()
        model = self._pool.model
        if model is None:
            raise Unavailable("no verifier can be reached")
        prompt = await self._tokenise(request)
        _check_limits(request, prompt, model)
        eos = frozenset() if request.ignore_eos else model.eos_token_ids
        room = model.context_limit - len(prompt)
        return AdmittedRequest(
            request=replace(request, max_tokens=_max_tokens(request, room)),
            prompt=prompt,
            room=room,
            stop_ids=eos.union(request.stop_token_ids),
        )

    async def stream(self, admitted: AdmittedRequest) -> AsyncGenerator[TextDelta]:
        """The text as it comes; leaving the iteration cancels the verifier's call. Raises DraftwoodError."""
        with self._telemetry.generating(admitted.request) as generated:
            tokens = TokenStream(
                self._pool, generated.request, admitted.prompt, room=admitted.room, resume_wait_s=self._resume_wait_s
            )
            try:
                async with aclosing(self._deltas(admitted, tokens)) as deltas:
                    async for delta in deltas:
                        generated.first_at = generated.first_at or time.monotonic()
                        generated.usage = delta.usage
                        generated.finish_reason = delta.finish_reason.value if delta.finish_reason else ""
                        yield delta
            finally:
                generated.resumes = tokens.resumes

    async def _deltas(self, admitted: AdmittedRequest, tokens: TokenStream) -> AsyncGenerator[TextDelta]:
        text = TextStream(self._tokenizer.pieces, admitted.request.stop, admitted.stop_ids)
        async with aclosing(tokens.batches()) as batches:
            async for batch in batches:
                piece = text.push(batch.token_ids)
                if batch.finished and not text.stopped:
                    piece = piece.plus(text.finish())
                rounds = self._rounds(batch.rounds) if admitted.request.report_rounds else None
                if batch.finished or text.stopped:
                    yield _last_delta(piece, rounds, text, batch.usage)
                    return
                if piece.text or piece.token_ids or rounds:
                    yield _delta(piece, rounds)

    async def complete(self, admitted: AdmittedRequest) -> Completion:
        """The same as one answer."""
        parts: list[str] = []
        token_ids: list[int] = []
        text_ends: list[int] = []
        rounds: list[TextRound] = []
        async with aclosing(self.stream(admitted)) as deltas:
            async for delta in deltas:
                parts.append(delta.text)
                token_ids += delta.token_ids
                text_ends += delta.text_ends
                rounds += delta.rounds or ()
        assert delta.finish_reason is not None, "the last delta says how it ended"
        assert delta.usage is not None, "the last delta says what it cost"
        return Completion(
            text="".join(parts),
            token_ids=token_ids,
            text_ends=text_ends,
            rounds=rounds if admitted.request.report_rounds else None,
            finish_reason=delta.finish_reason,
            usage=delta.usage,
        )

    def _rounds(self, rounds: list[Round]) -> list[TextRound]:
        return [with_texts(entry, self._tokenizer.token_text) for entry in rounds]

    async def _tokenise(self, request: GenerationRequest) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, TextPrompt):
            if len(prompt.text) > _LONG_TEXT_CHARACTERS:
                return await asyncio.to_thread(self._tokenizer.encode, prompt.text)
            return self._tokenizer.encode(prompt.text)
        if isinstance(prompt, ChatPrompt):
            if not prompt.messages:
                raise InvalidRequest("messages: is empty")
            return await asyncio.to_thread(self._tokenizer.encode_chat, prompt.messages, prompt.options)
        return list(prompt.token_ids)


def _check_limits(request: GenerationRequest, prompt: list[int], model: ServedModel) -> None:
    name = "messages" if isinstance(request.prompt, ChatPrompt) else "prompt"
    if not prompt:
        raise InvalidRequest(f"{name}: is empty")
    if len(prompt) >= model.context_limit:
        raise InvalidRequest(
            f"{name}: {len(prompt)} tokens leave no room for an answer in the context limit of {model.context_limit}"
        )
    for field, ids in ((name, prompt), ("stop_token_ids", request.stop_token_ids)):
        unknown = next((token_id for token_id in ids if not 0 <= token_id < model.vocab_size), None)
        if unknown is not None:
            raise InvalidRequest(f"{field}: token id {unknown} is not in the vocabulary of {model.vocab_size}")
    if not 0 <= request.node_limit <= model.max_node_limit:
        raise InvalidRequest(f"node_limit: {request.node_limit} is not between 0 and {model.max_node_limit}")


def _max_tokens(request: GenerationRequest, room: int) -> int | None:
    """What to ask the verifier for; None leaves it to the verifier, whose cache may hold less than the context."""
    if request.max_tokens is None and request.default_max_tokens is not None:
        return min(request.default_max_tokens, room)
    if request.max_tokens is not None and request.max_tokens > room:
        raise InvalidRequest(
            f"max_tokens: {request.max_tokens} exceeds the {room} tokens that the prompt leaves room for"
        )
    return request.max_tokens


def _delta(piece: TextPiece, rounds: list[TextRound] | None) -> TextDelta:
    return TextDelta(text=piece.text, token_ids=piece.token_ids, text_ends=piece.ends, rounds=rounds)


def _last_delta(piece: TextPiece, rounds: list[TextRound] | None, text: TextStream, usage: Usage) -> TextDelta:
    return replace(
        _delta(piece, rounds),
        finish_reason=FinishReason.STOP if text.stopped else FinishReason.LENGTH,
        usage=replace(usage, completion_tokens=text.token_count),
    )
