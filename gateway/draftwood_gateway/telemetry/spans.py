"""The gateway's spans: the call at the front door, and the generations that it asks verifiers for."""

from opentelemetry.trace import SpanKind

from draftwood_gateway.requests import ChatPrompt, GenerationRequest
from draftwood_gateway.telemetry.records import Generated, ServedRequest
from draftwood_wire import telemetry as names
from draftwood_wire.tracing import FinishedSpan, Tracing, Value


def operation(request: GenerationRequest) -> str:
    return "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"


def server_span_name(route: str, http_method: str) -> str:
    return f"{http_method} {route}" if http_method else route


def generation_span_name(request: GenerationRequest, model_name: str) -> str:
    return f"{operation(request)} {model_name}"


class GatewaySpans:
    """Fed by the telemetry thread."""

    def __init__(self, tracing: Tracing, model_name: str) -> None:
        self._tracing = tracing
        self._model_name = model_name

    def served(self, served: ServedRequest) -> None:
        if served.context is None:
            return
        self._tracing.emit(
            FinishedSpan(
                name=server_span_name(served.route, served.http_method),
                context=served.context,
                parent=served.parent,
                started_at=served.arrived_at,
                ended_at=served.ended_at,
                kind=SpanKind.SERVER,
                attributes=_server_attributes(served),
                error=served.status if served.failed else "",
            )
        )

    def generated(self, generated: Generated) -> None:
        if generated.context is None:
            return
        self._tracing.emit(
            FinishedSpan(
                name=generation_span_name(generated.request, self._model_name),
                context=generated.context,
                parent=generated.parent,
                started_at=generated.started_at,
                ended_at=generated.ended_at,
                kind=SpanKind.CLIENT,
                attributes=self._generation_attributes(generated),
                error=generated.error,
            )
        )

    def _generation_attributes(self, generated: Generated) -> dict[str, Value]:
        request, usage = generated.request, generated.usage
        attributes: dict[str, Value] = {
            names.OPERATION: operation(request),
            names.PROVIDER: "draftwood",
            names.REQUEST_MODEL: self._model_name,
            names.REQUEST_ID: request.request_id,
            names.MODE: request.speculation.value,
            names.REQUEST_TEMPERATURE: request.sampling.temperature,
            names.RESUMES: generated.resumes,
        }
        if request.max_tokens is not None:
            attributes[names.REQUEST_MAX_TOKENS] = request.max_tokens
        if generated.first_at:
            attributes[names.TIME_TO_FIRST_CHUNK] = generated.first_at - generated.started_at
        if usage is not None:
            attributes |= {
                names.INPUT_TOKENS: usage.prompt_tokens,
                names.OUTPUT_TOKENS: usage.completion_tokens,
                names.CACHED_TOKENS: usage.cached_tokens,
            }
        if generated.finish_reason:
            attributes[names.FINISH_REASONS] = [generated.finish_reason]
        return attributes


def _server_attributes(served: ServedRequest) -> dict[str, Value]:
    if not served.http_method:
        return {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: served.route, names.RPC_STATUS: served.status}
    return {
        names.HTTP_METHOD: served.http_method,
        names.HTTP_ROUTE: served.route,
        names.HTTP_STATUS: int(served.status),
    }
