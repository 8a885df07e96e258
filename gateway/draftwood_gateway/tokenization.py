"""Text to token ids, and what is needed for the way back, from the files of a checkpoint."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from draftwood_gateway.chat_template import ChatTemplate, load_chat_template
from draftwood_gateway.token_bytes import token_bytes
from draftwood_wire.errors import InvalidRequest


class TextTokenizer:
    """`pieces` are the bytes of every token id; `fingerprint` is the SHA-256 of tokenizer.json in hex."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate | None, fingerprint: str) -> None:
        self.pieces = token_bytes(tokenizer)
        self.fingerprint = fingerprint
        self._tokenizer = tokenizer
        self._chat_template = chat_template

    def token_text(self, token_id: int) -> str:
        """A token on its own: bytes that are no character as \\xNN, special tokens by their name."""
        piece = self.pieces[token_id] if token_id < len(self.pieces) else b""
        return piece.decode(errors="backslashreplace") or self._tokenizer.id_to_token(token_id) or f"<{token_id}>"

    def encode(self, text: str) -> list[int]:
        """The ids of a plain prompt, with the special tokens that the tokenizer itself adds (BOS)."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[int]:
        """The ids of a conversation; its special tokens come from the template. Raises InvalidRequest."""
        if self._chat_template is None:
            raise InvalidRequest("messages: this model has no chat template")
        return self._encode(self._chat_template.render(messages, options), add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        # A lone surrogate (JSON's "\ud800") is no text that UTF-8 can carry.
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"prompt: not valid Unicode at character {error.start}: {error.reason}") from error
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Raises ValueError when the files are not usable."""
    data = (folder / "tokenizer.json").read_bytes()
    tokenizer = Tokenizer.from_str(data.decode())
    # Both are settings for training batches; a prompt is never cut or padded in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.is_file() else {}
    return TextTokenizer(tokenizer, load_chat_template(folder, config), hashlib.sha256(data).hexdigest())
