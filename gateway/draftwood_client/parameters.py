"""The parameters of a generation, shared by both clients, and the request made from them."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from draftwood_wire.errors import InvalidRequest
from draftwood_wire.v1 import gateway_service_pb2 as pb
from draftwood_wire.v1 import sampling_pb2

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, str]]


class Parameters(TypedDict, total=False):
    """All optional. Without `temperature` decoding is greedy; without `max_tokens` it goes to the context limit."""

    model: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    speculation: Literal["off", "chain", "tree", "auto"]
    node_limit: int


_MODES = {
    None: sampling_pb2.SPECULATION_MODE_UNSPECIFIED,
    "off": sampling_pb2.SPECULATION_MODE_OFF,
    "chain": sampling_pb2.SPECULATION_MODE_CHAIN,
    "tree": sampling_pb2.SPECULATION_MODE_TREE,
    "auto": sampling_pb2.SPECULATION_MODE_AUTO,
}


def text_request(prompt: Prompt | None, messages: Messages | None, parameters: Parameters) -> pb.TextRequest:
    """Raises InvalidRequest for what the wire can't carry; the gateway checks the rest."""
    unknown = parameters.keys() - Parameters.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown parameters: {', '.join(sorted(unknown))}")
    mode = parameters.get("speculation")
    if mode not in _MODES:
        raise InvalidRequest(f"speculation: {mode!r} is not one of 'off', 'chain', 'tree', 'auto'")
    stop = parameters.get("stop", ())
    try:
        request = pb.TextRequest(
            model=parameters.get("model", ""),
            sampling=sampling_pb2.SamplingParams(
                temperature=parameters.get("temperature", 0.0),
                top_k=parameters.get("top_k", 0),
                top_p=parameters.get("top_p", 0.0),
                min_p=parameters.get("min_p", 0.0),
                seed=parameters.get("seed"),
            ),
            max_tokens=parameters.get("max_tokens"),
            stop=[stop] if isinstance(stop, str) else stop,
            stop_token_ids=parameters.get("stop_token_ids", ()),
            ignore_eos=parameters.get("ignore_eos", False),
            speculation=sampling_pb2.SpeculationParams(mode=_MODES[mode], node_limit=parameters.get("node_limit", 0)),
        )
        _set_input(request, prompt, messages)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return request


def _set_input(request: pb.TextRequest, prompt: Prompt | None, messages: Messages | None) -> None:
    if (prompt is None) == (messages is None):
        raise InvalidRequest("prompt: give either a prompt or messages")
    if isinstance(prompt, str):
        request.prompt = prompt
    elif prompt is not None:
        request.prompt_tokens.token_ids.extend(prompt)
        request.prompt_tokens.SetInParent()
    elif messages is not None:
        request.chat.messages.extend(
            pb.ChatMessage(role=message["role"], content=message["content"]) for message in messages
        )
        request.chat.SetInParent()


def call_metadata(traceparent: str, api_key: str) -> tuple[tuple[str, str], ...]:
    metadata = {"traceparent": traceparent, "authorization": f"Bearer {api_key}" if api_key else ""}
    return tuple((key, value) for key, value in metadata.items() if value)
