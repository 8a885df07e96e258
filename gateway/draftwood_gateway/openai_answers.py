"""OpenAI's response bodies."""

import re
import time
from collections.abc import Sequence
from functools import reduce
from typing import Any

from draftwood_gateway.generation import Completion, TextDelta
from draftwood_gateway.rounds import TextRound
from draftwood_gateway.usage import Usage

_FIELD = re.compile(r"([A-Za-z_][\w.]*): ")


class CompletionShape:
    """`/v1/completions`: choices hold `text`."""

    answer = chunk = "text_completion"
    prefix = "cmpl-"

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        return _choice(index, completion.finish_reason.value, text=completion.text, **_extension(completion))

    def first_chunks(self, index: int) -> list[dict[str, Any]]:  # noqa: ARG002
        return []

    def delta(self, index: int, delta: TextDelta) -> dict[str, Any]:
        return _choice(index, _reason(delta), text=delta.text, **_extension(delta))


class ChatShape:
    """`/v1/chat/completions`: choices hold a `message`, chunks a `delta`."""

    answer = "chat.completion"
    chunk = "chat.completion.chunk"
    prefix = "chatcmpl-"

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        message = {"role": "assistant", "content": completion.text}
        return _choice(index, completion.finish_reason.value, message=message, **_extension(completion))

    def first_chunks(self, index: int) -> list[dict[str, Any]]:
        return [_choice(index, None, delta={"role": "assistant", "content": ""})]

    def delta(self, index: int, delta: TextDelta) -> dict[str, Any]:
        content = {"content": delta.text} if delta.text else {}
        return _choice(index, _reason(delta), delta=content, **_extension(delta))


Shape = CompletionShape | ChatShape


def envelope(kind: str, request_id: str, model: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"id": request_id, "object": kind, "created": int(time.time()), "model": model, "choices": list(choices)}


def usage_body(usages: Sequence[Usage]) -> dict[str, Any]:
    """The sum over all choices, with this server's own figures under `draftwood`."""
    total = reduce(_add, usages)
    # The first token of each choice comes from prefill.
    later = total.completion_tokens - len(usages)
    return {
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "total_tokens": total.prompt_tokens + total.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": total.cached_tokens},
        "draftwood": {
            "rounds": total.rounds,
            "speculative_rounds": total.speculative_rounds,
            "proposed_nodes": total.proposed_nodes,
            "accepted_nodes": total.accepted_nodes,
            "accepted_length": later / total.rounds if total.rounds else 0.0,
            "cached_tokens": total.cached_tokens,
        },
    }


def error_body(message: str, status: int, code: str | None) -> dict[str, Any]:
    """`param` is the field that the message starts with."""
    named = _FIELD.match(message)
    kinds = {404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": named[1] if named else None, "code": code}}


def model_body(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "draftwood"}


def _choice(index: int, finish_reason: str | None, **content: Any) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}


def _extension(part: TextDelta | Completion) -> dict[str, Any]:
    """The choice's `draftwood` object, for requests that report their rounds."""
    if part.rounds is None:
        return {}
    rounds = [_round_body(entry) for entry in part.rounds]
    return {"draftwood": {"token_ids": part.token_ids, "text_ends": part.text_ends, "rounds": rounds}}


def _round_body(entry: TextRound) -> dict[str, Any]:
    told = entry.round
    return {
        "round": told.number,
        "kind": told.kind,
        "base_len": told.base_len,
        "tree": {
            "token_ids": told.node_ids,
            "parents": told.parents,
            "log_probs": told.log_probs,
            "texts": entry.node_texts,
        },
        "path": told.path,
        "token_ids": told.token_ids,
        "texts": entry.token_texts,
        "draft_wait_ms": told.draft_wait_ms,
        "verify_ms": told.verify_ms,
    }


def _reason(delta: TextDelta) -> str | None:
    return None if delta.finish_reason is None else delta.finish_reason.value


def _add(left: Usage, right: Usage) -> Usage:
    fields = Usage.__dataclass_fields__
    return Usage(**{name: getattr(left, name) + getattr(right, name) for name in fields})
