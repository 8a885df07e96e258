"""OpenAI's request bodies, with vLLM's names for what OpenAI lacks, and their way into a GenerationRequest.

Unknown fields are ignored, as OpenAI's clients expect; known ones that this server can't honour are refused by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from draftwood_gateway.requests import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    Sampling,
    SpeculationMode,
    TextPrompt,
    TokenPrompt,
)
from draftwood_wire.errors import InvalidRequest

# OpenAI's default for /v1/completions; chat goes on to the context limit.
_COMPLETION_MAX_TOKENS = 16


def _nothing(value: Any) -> bool:
    """Null, false, zero, empty: the field asks for nothing."""
    return not value


def _is(*allowed: Any) -> Callable[[Any], bool]:
    return lambda value: any(value == one and type(value) is not bool for one in allowed)


# Fields that change the answer's meaning, each with what it may say all the same. Null is always fine.
_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "n": _is(1),
    "best_of": _is(1),
    "logprobs": lambda value: value is False,
    "top_logprobs": _nothing,
    "prompt_logprobs": lambda value: value is False,
    "echo": _nothing,
    "suffix": _nothing,
    "logit_bias": _nothing,
    "presence_penalty": _nothing,
    "frequency_penalty": _nothing,
    "repetition_penalty": _is(1),
    "length_penalty": _is(1),
    "min_tokens": _nothing,
    "tools": _nothing,
    "tool_choice": _is("none", "auto"),
    "functions": _nothing,
    "function_call": _is("none", "auto"),
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "structured_outputs": _nothing,
    "guided_json": _nothing,
    "guided_regex": _nothing,
    "guided_choice": _nothing,
    "guided_grammar": _nothing,
    "bad_words": _nothing,
    "allowed_token_ids": _nothing,
    "use_beam_search": _nothing,
    "include_stop_str_in_output": _nothing,
    "skip_special_tokens": lambda value: value is True,
    "truncate_prompt_tokens": lambda _: False,
    "modalities": _is(["text"]),
    "audio": _nothing,
}


class StreamOptions(BaseModel):
    include_usage: bool = False


class Extensions(BaseModel):
    """What only this server has: `rounds` adds the round reports to each choice."""

    rounds: bool = False


class _GenerationBody(BaseModel):
    """What both endpoints share; null stands for absent."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: StrictInt | None = None
    min_p: float | None = None
    seed: StrictInt | None = None
    max_tokens: StrictInt | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[StrictInt] | None = None
    ignore_eos: bool | None = None
    speculation: Literal["off", "chain", "tree", "auto"] | None = None
    node_limit: StrictInt | None = None
    draftwood: Extensions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def _request(self, prompt: Prompt, max_tokens: int | None, request_id: str, traceparent: str) -> GenerationRequest:
        self._refuse_unsupported()
        return GenerationRequest(
            prompt=prompt,
            model=self.model or "",
            sampling=self._sampling(),
            max_tokens=max_tokens,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop or (),
            stop_token_ids=self.stop_token_ids or (),
            ignore_eos=bool(self.ignore_eos),
            speculation=SpeculationMode(self.speculation or "default"),
            node_limit=self.node_limit or 0,
            report_rounds=self.draftwood is not None and self.draftwood.rounds,
            request_id=request_id,
            traceparent=traceparent,
        )

    def _sampling(self) -> Sampling:
        if self.top_p is not None and self.top_p <= 0:
            raise InvalidRequest(f"top_p: {self.top_p} is not above 0")
        if self.seed is not None and not -(1 << 63) <= self.seed < 1 << 64:
            raise InvalidRequest(f"seed: {self.seed} is not a 64-bit number")
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=0 if self.top_k in (None, -1) else self.top_k,
            top_p=0.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            # Negative seeds are allowed by others; the key of the noise is unsigned.
            seed=None if self.seed is None else self.seed % (1 << 64),
        )

    def _refuse_unsupported(self) -> None:
        for name, value in (self.model_extra or {}).items():
            permits = _UNSUPPORTED.get(name)
            if permits is not None and value is not None and not permits(value):
                raise InvalidRequest(f"{name}: this value is not supported here")


class CompletionBody(_GenerationBody):
    prompt: Any = None

    def requests(self, request_id: str, traceparent: str) -> list[GenerationRequest]:
        """One for each prompt, in order. Raises InvalidRequest."""
        requests = [self._request(prompt, self.max_tokens, request_id, traceparent) for prompt in _prompts(self.prompt)]
        return [replace(request, default_max_tokens=_COMPLETION_MAX_TOKENS) for request in requests]


class ContentPart(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: str
    text: str | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: str = Field(min_length=1)
    content: str | list[ContentPart] | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it: content is one string."""
        return {**(self.model_extra or {}), "role": self.role, "content": self._text()}

    def _text(self) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        if any(part.type != "text" or part.text is None for part in self.content):
            raise InvalidRequest("messages: only text content is supported here")
        return "\n".join(part.text or "" for part in self.content)


class ChatBody(_GenerationBody):
    messages: list[Message]
    max_completion_tokens: StrictInt | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def request(self, request_id: str, traceparent: str) -> GenerationRequest:
        """Raises InvalidRequest."""
        prompt = ChatPrompt(
            messages=[message.for_template() for message in self.messages], options=self.chat_template_kwargs or {}
        )
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self._request(prompt, max_tokens, request_id, traceparent)


def _prompts(value: Any) -> Sequence[Prompt]:
    """A string, token ids, or a list of either."""
    if isinstance(value, str):
        return [TextPrompt(text=value)]
    if isinstance(value, list) and value:
        if _token_ids(value):
            return [TokenPrompt(token_ids=value)]
        if all(isinstance(one, str) for one in value):
            return [TextPrompt(text=one) for one in value]
        if all(isinstance(one, list) and _token_ids(one) for one in value):
            return [TokenPrompt(token_ids=one) for one in value]
    if value in (None, []):
        raise InvalidRequest("prompt: is empty")
    raise InvalidRequest("prompt: must be a string, a list of strings, a list of token ids or a list of such lists")


def _token_ids(value: list[Any]) -> bool:
    return all(type(one) is int for one in value)


def validation_message(error: ValidationError) -> str:
    """The first thing wrong, starting with the field's name."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"][:3]) or "body"
    return f"{field}: {first['msg']}"
