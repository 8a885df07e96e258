"""API keys: who may call, at both faces. Health stays open, as the probes of an orchestrator hold no key."""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import grpc
import grpc.aio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwood_wire.errors import Unauthenticated, status_of

_SCHEME = "bearer "
_OPEN_METHODS = "/grpc.health.v1.Health/"
# What a model answers lies below; health, and pages for people who then show their key, do not.
_GUARDED_PATHS = "/v1/"

# Generic in the stubs only.
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ApiKeys:
    """The keys that are let in; without any, everybody is."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    @classmethod
    def read(cls, path: str) -> Self:
        """From a file with one key a line; empty lines and those that begin with # don't count.

        No path lets everybody in, but a file must hold a key. Raises ValueError.
        """
        if not path:
            return cls()
        try:
            lines = [line.strip() for line in Path(path).read_text("ascii").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"api_keys: {path}: {error}") from error
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ValueError(f"api_keys: {path} holds no key")
        return cls(keys)

    def check(self, authorization: str) -> None:
        """Raises Unauthenticated unless `authorization` is `Bearer KEY` with a known key."""
        if not self._keys:
            return
        if not authorization.lower().startswith(_SCHEME):
            raise Unauthenticated("authorization: an API key is needed: 'Bearer KEY'")
        shown = authorization[len(_SCHEME) :].strip().encode()
        # Every key is compared, each in constant time: the answer's delay tells nothing.
        if not sum(hmac.compare_digest(shown, key) for key in self._keys):
            raise Unauthenticated("authorization: this API key is not known here")


class GrpcKeys(grpc.aio.ServerInterceptor):
    """Reads the metadata key `authorization`."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["_Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        if not handler_call_details.method.startswith(_OPEN_METHODS):
            metadata = dict(handler_call_details.invocation_metadata or ())
            try:
                self._keys.check(str(metadata.get("authorization", "")))
            except Unauthenticated as error:
                return _refusing(error)
        return await continuation(handler_call_details)


def _refusing(error: Unauthenticated) -> _Handler:
    """A handler for calls of any arity: it ends them before their first answer."""

    async def refuse(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(status_of(error), str(error))
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(refuse)


class HttpKeys:
    """Reads the header `Authorization`."""

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, refusal: Callable[[Request, Exception], Awaitable[Response]]
    ) -> None:
        self._app = app
        self._keys = keys
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_GUARDED_PATHS):
            request = Request(scope, receive)
            try:
                self._keys.check(request.headers.get("authorization", ""))
            except Unauthenticated as error:
                response = await self._refusal(request, error)
                response.headers["WWW-Authenticate"] = "Bearer"
                return await response(scope, receive, send)
        return await self._app(scope, receive, send)
