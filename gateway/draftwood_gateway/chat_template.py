"""The checkpoint's chat template, rendered as transformers does, in a sandbox: it is somebody else's program."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftwood_wire.errors import InvalidRequest


class ChatTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ValueError when the template does not parse."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"chat template: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt that asks for the assistant's next message. Raises InvalidRequest."""
        variables = {**self._special_tokens, "add_generation_prompt": True, **options, "messages": list(messages)}
        try:
            return self._template.render(variables)
        # The template runs on what the client sent: whatever it raises is about these messages.
        except Exception as error:
            raise InvalidRequest(f"messages: the chat template refuses them: {error}") from error


def load_chat_template(folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """From chat_template.jinja, else tokenizer_config.json's `chat_template`; None when there is neither."""
    source = config.get("chat_template")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    file = folder / "chat_template.jinja"
    if file.is_file():
        source = file.read_text(encoding="utf-8")
    if not source:
        return None
    return ChatTemplate(source, special_tokens(config))


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, … of a tokenizer_config.json, whose values are strings or objects with `content`."""
    found = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not have."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
