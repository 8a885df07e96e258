"""OpenAI's HTTP endpoints."""

import json
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from draftwood_gateway.authentication import ApiKeys, HttpKeys
from draftwood_gateway.generation import AdmittedRequest, Generator
from draftwood_gateway.http_stream import EventStream, until_disconnect
from draftwood_gateway.merging import all_of, merge
from draftwood_gateway.openai_answers import (
    ChatShape,
    CompletionShape,
    Shape,
    envelope,
    error_body,
    model_body,
    usage_body,
)
from draftwood_gateway.openai_schema import ChatBody, CompletionBody, validation_message
from draftwood_gateway.page import page_routes
from draftwood_gateway.requests import GenerationRequest
from draftwood_gateway.telemetry.middleware import TRACEPARENT_KEY, TelemetryMiddleware
from draftwood_gateway.telemetry.observer import GatewayTelemetry
from draftwood_wire.errors import (
    DraftwoodError,
    Incompatible,
    InvalidRequest,
    Overloaded,
    Unauthenticated,
    Unavailable,
    UnknownModel,
)

_LOG = logging.getLogger(__name__)
_MAX_BODY_BYTES = 16 * 1024 * 1024
_STATUS: list[tuple[type[DraftwoodError], int, str | None]] = [
    (InvalidRequest, 400, None),
    (Unauthenticated, 401, "invalid_api_key"),
    (UnknownModel, 404, "model_not_found"),
    (Incompatible, 400, None),
    (Overloaded, 429, "overloaded"),
    (Unavailable, 503, "unavailable"),
]


def openai_app(generator: Generator, telemetry: GatewayTelemetry, keys: ApiKeys) -> Starlette:
    routes = _Routes(generator)
    return Starlette(
        routes=[
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/chat/completions", routes.chat_completions, methods=["POST"]),
            Route("/v1/models", routes.models, methods=["GET"]),
            Route("/v1/models/{name:path}", routes.model, methods=["GET"]),
            Route("/healthz", routes.healthz, methods=["GET"]),
            *page_routes(),
        ],
        middleware=[
            Middleware(TelemetryMiddleware, telemetry=telemetry),
            Middleware(HttpKeys, keys=keys, refusal=_draftwood_error),
        ],
        exception_handlers={
            DraftwoodError: _draftwood_error,
            ValidationError: _validation_error,
            HTTPException: _http_error,
            Exception: _server_error,
        },
    )


class _Routes:
    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._created = int(time.time())

    async def completions(self, request: Request) -> Response:
        body = CompletionBody.model_validate(await _json_body(request))
        shape = CompletionShape()
        request_id = shape.prefix + uuid4().hex
        requests = body.requests(request_id, _traceparent(request))
        return await self._answer(request, shape, request_id, requests, bool(body.stream), body.include_usage)

    async def chat_completions(self, request: Request) -> Response:
        body = ChatBody.model_validate(await _json_body(request))
        shape = ChatShape()
        request_id = shape.prefix + uuid4().hex
        requests = [body.request(request_id, _traceparent(request))]
        return await self._answer(request, shape, request_id, requests, bool(body.stream), body.include_usage)

    async def models(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse({"object": "list", "data": [model_body(self._generator.model_name, self._created)]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._generator.check_model(name)
        return JSONResponse(model_body(name, self._created))

    async def healthz(self, request: Request) -> Response:  # noqa: ARG002
        ready = self._generator.ready
        return JSONResponse({"status": "ok" if ready else "no verifier"}, status_code=200 if ready else 503)

    async def _answer(
        self,
        http: Request,
        shape: Shape,
        request_id: str,
        requests: Sequence[GenerationRequest],
        stream: bool,
        include_usage: bool,
    ) -> Response:
        admitted = [await self._generator.admit(request) for request in requests]
        if not stream:
            return await until_disconnect(http, self._whole(shape, request_id, admitted))
        events = self._events(shape, request_id, admitted, include_usage)
        # The verifier may refuse as well: only its first message makes this a 200.
        return await until_disconnect(http, EventStream.started(events))

    async def _whole(self, shape: Shape, request_id: str, admitted: Sequence[AdmittedRequest]) -> Response:
        completions = await all_of([self._generator.complete(one) for one in admitted])
        choices = [shape.choice(index, completion) for index, completion in enumerate(completions)]
        answer = envelope(shape.answer, request_id, self._generator.model_name, choices)
        return JSONResponse({**answer, "usage": usage_body([completion.usage for completion in completions])})

    async def _events(
        self, shape: Shape, request_id: str, admitted: Sequence[AdmittedRequest], include_usage: bool
    ) -> AsyncGenerator[bytes]:
        """Server-sent events; an error after the first one is an event too, as the status is out already."""
        usages = []
        started = False

        def event(choices: Sequence[dict[str, Any]], **more: Any) -> bytes:
            # With include_usage every chunk has the field, null on all but the last.
            usage = {"usage": None} if include_usage else {}
            return _event({**envelope(shape.chunk, request_id, self._generator.model_name, choices), **usage, **more})

        try:
            async with aclosing(merge([self._generator.stream(one) for one in admitted])) as deltas:
                async for index, delta in deltas:
                    if not started:
                        started = True
                        for choice_index in range(len(admitted)):
                            for choice in shape.first_chunks(choice_index):
                                yield event([choice])
                    if delta.text or delta.rounds or delta.finish_reason is not None:
                        yield event([shape.delta(index, delta)])
                    if delta.usage is not None:
                        usages.append(delta.usage)
        except DraftwoodError as error:
            if not started:
                raise
            yield _event(error_body(str(error), *_status_of(error)))
            return
        if include_usage:
            yield event([], usage=usage_body(usages))
        yield b"data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _traceparent(request: Request) -> str:
    """Put there by the middleware."""
    return str(request.scope[TRACEPARENT_KEY])


async def _json_body(request: Request) -> dict[str, Any]:
    """Raises InvalidRequest, or HTTPException 413."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _MAX_BODY_BYTES:
            raise HTTPException(413, f"body: larger than {_MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"body: malformed JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidRequest("body: must be a JSON object")
    return body


def _status_of(error: DraftwoodError) -> tuple[int, str | None]:
    return next(((status, code) for kind, status, code in _STATUS if isinstance(error, kind)), (500, None))


def _error(message: str, status: int, code: str | None, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(error_body(message, status, code), status_code=status, headers=headers)


async def _draftwood_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, DraftwoodError)
    return _error(str(error), *_status_of(error))


async def _validation_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, ValidationError)
    return _error(validation_message(error), 400, None)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code in (404, 405):
        message = f"{request.method} {request.url.path}: {error.detail}"
    return _error(message, error.status_code, None, dict(error.headers or {}))


async def _server_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    _LOG.error("request failed", exc_info=error)
    return _error("internal error", 500, None)
